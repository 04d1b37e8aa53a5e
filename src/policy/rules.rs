//! Rules: which identities may do what, and where.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::Deserialize;
use toml::Spanned;

use crate::{IdentityLimits, PolicyFileError, file};
use lockkeeper_planted::Planted;
use lockkeeper_types::Identity;

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Right {
    /// Opens and renews sessions, acquires locks and updates their data, writes and deletes keys of the keyspace.
    Acquire,
    /// Shows and lists locks, and checks tokens. Shows, lists and compares keys of the keyspace.
    Read,
    /// Watches locks.
    Watch,
    /// Takes a lock from its holder, removes a waiter, or lifts a lock-delay.
    ForceRelease,
    /// Does everything else that operators do: members, snapshots, sessions of others, sizes of semaphores, kept data.
    Administer,
}

/// What a request concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestSubject<'a> {
    /// The request concerns one lock.
    Name(&'a str),
    /// The request concerns all locks under a prefix.
    Under(&'a str),
    /// The request concerns a key of the keyspace. Prefixes of rules are compared with its bytes.
    Key(&'a [u8]),
    /// The request concerns the keys of a range. Without `to`, the range extends to the last key.
    Keys {
        /// The first key.
        from: &'a [u8],
        /// The key after the last one.
        to: Option<&'a [u8]>,
    },
    /// The request concerns no lock in particular. Any rule with the right allows it.
    Anywhere,
    /// The request concerns the cluster as a whole. Only a rule without a prefix allows it.
    Cluster,
}

/// Whom a rule means.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Who {
    /// The rule means every identity, but no anonymous caller.
    Any,
    Anonymous,
    /// The rule means each identity that begins with this text.
    Beginning(String),
    One(Identity),
}

/// One rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The line of the rule in the file.
    pub line: usize,
    who: Vec<Who>,
    may: Vec<Right>,
    prefix: String,
}

/// The rules and limits of a file. The default has no rule, and allows nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
    default_limits: IdentityLimits,
    limits: BTreeMap<Identity, IdentityLimits>,
}

/// A request is refused because no rule allows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denied {
    who: Option<Identity>,
    right: Right,
    what: String,
    /// The longest prefix with which a rule would allow the request.
    prefix: String,
    /// The prefixes under which the caller has the right.
    elsewhere: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPolicyFile {
    #[serde(default, rename = "rule")]
    rules: Vec<Spanned<RawRule>>,
    #[serde(default)]
    limits: BTreeMap<String, Spanned<IdentityLimits>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    who: Spanned<Vec<Spanned<String>>>,
    may: Spanned<Vec<Spanned<String>>>,
    #[serde(default)]
    prefix: String,
}

impl Right {
    const ALL: [Self; 5] = [Self::Acquire, Self::Read, Self::Watch, Self::ForceRelease, Self::Administer];

    /// The right's name in a policy file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Read => "read",
            Self::Watch => "watch",
            Self::ForceRelease => "force-release",
            Self::Administer => "administer",
        }
    }
}

impl FromStr for Right {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|right| right.as_str() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|right| right.as_str()).collect();
            format!("{name:?} is not a right: give {}", names.join(", "))
        })
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for RequestSubject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name:?}"),
            Self::Under(prefix) => write!(f, "all locks under {prefix:?}"),
            Self::Key(key) => write!(f, "the key \"{}\"", key.escape_ascii()),
            Self::Keys { from, to: Some(to) } => {
                write!(f, "the keys from \"{}\" up to \"{}\"", from.escape_ascii(), to.escape_ascii())
            }
            Self::Keys { from, to: None } => write!(f, "all keys from \"{}\" on", from.escape_ascii()),
            Self::Anywhere => f.write_str("any lock"),
            Self::Cluster => f.write_str("the cluster"),
        }
    }
}

impl Who {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "*" => return Ok(Self::Any),
            Identity::ANONYMOUS => return Ok(Self::Anonymous),
            _ => {}
        }

        match text.strip_suffix('*') {
            // The beginning is checked as an identity, which refuses another `*` and spaces.
            Some(beginning) => Identity::new(beginning).map(|_| Self::Beginning(beginning.to_owned())),
            None => Identity::new(text).map(Self::One),
        }
        .map_err(|invalid| format!("{invalid}; or give \"*\", \"anonymous\", or a beginning with a `*` at its end"))
    }

    fn means(&self, who: Option<&Identity>) -> bool {
        match self {
            Self::Any => who.is_some() || Planted::AnonymousIsAnybody.is_on(),
            Self::Anonymous => who.is_none(),
            Self::Beginning(beginning) => who.is_some_and(|who| who.as_str().starts_with(beginning)),
            Self::One(one) => who == Some(one),
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Anonymous => f.write_str(Identity::ANONYMOUS),
            Self::Beginning(beginning) => write!(f, "{beginning}*"),
            Self::One(one) => one.fmt(f),
        }
    }
}

impl Rule {
    fn gives(&self, who: Option<&Identity>, right: Right) -> bool {
        self.may.contains(&right) && self.who.iter().any(|meant| meant.means(who))
    }

    fn covers(&self, what: RequestSubject<'_>) -> bool {
        match what {
            RequestSubject::Name(name) => name.starts_with(&self.prefix),
            RequestSubject::Under(prefix) => prefix.starts_with(&self.prefix),
            RequestSubject::Key(key) => begins_with(key, self.prefix.as_bytes()),
            RequestSubject::Keys { from, to } => covers_keys(self.prefix.as_bytes(), from, to),
            RequestSubject::Anywhere => true,
            RequestSubject::Cluster => self.prefix.is_empty(),
        }
    }
}

/// The first part of the keys of ZooKeeper's nodes.
const NODES: &[u8] = b"zookeeper";

/// Whether a key begins with a prefix. The key of a node of ZooKeeper has a NUL before its last name, where its path has a `/`: so that the
/// children of a node are one range. Rules are written with paths, and a name has no NUL, so a `/` of the prefix stands for both.
fn begins_with(key: &[u8], prefix: &[u8]) -> bool {
    if !key.starts_with(NODES) {
        return key.starts_with(prefix);
    }
    let is_same = |(of_key, of_prefix): (&u8, &u8)| of_key == of_prefix || *of_key == 0 && *of_prefix == b'/';
    key.len() >= prefix.len() && key.iter().zip(prefix).all(is_same)
}

/// Whether all keys of a range begin with the prefix. The last of them is below the range's end. Therefore the end may
/// be the prefix with its last byte raised, as in a range of all keys that begin with it.
fn covers_keys(prefix: &[u8], from: &[u8], to: Option<&[u8]>) -> bool {
    // No byte of UTF-8 is 255, so the last byte can be raised.
    let Some((last, start)) = prefix.split_last() else { return true };
    let end = [start, &[last + 1]].concat();
    from.starts_with(prefix) && (to.is_some_and(|to| to <= &end[..]) || Planted::RangeBeyondPrefix.is_on())
}

/// The beginning of a key that is text, because prefixes in a policy are text.
fn text_beginning(key: &[u8]) -> String {
    let beginning = key.utf8_chunks().next().map(|chunk| chunk.valid().to_owned()).unwrap_or_default();
    if key.starts_with(NODES) { beginning.replace('\0', "/") } else { beginning }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who: Vec<_> = self.who.iter().map(Who::to_string).collect();
        let may: Vec<_> = self.may.iter().map(|right| right.as_str()).collect();
        write!(f, "{} may {} under {:?}", who.join(", "), may.join(", "), self.prefix)
    }
}

impl Policy {
    /// Reads a policy file. Fails with the first problem and its line.
    ///
    /// A file without rules would refuse everything. It is refused itself, because it is more likely half written than meant.
    pub fn parse(text: &str) -> Result<Self, PolicyFileError> {
        let raw: RawPolicyFile = file::parse(text)?;
        if raw.rules.is_empty() {
            let problem = "there is no rule, so nobody could do anything: add a [[rule]], or remove the policy from the configuration";
            return Err(PolicyFileError { line: 1, problem: problem.to_owned() });
        }

        let rules = raw.rules.into_iter().map(|rule| Self::rule(text, rule)).collect::<Result<_, _>>()?;

        let mut default_limits = IdentityLimits::default();
        let mut limits = BTreeMap::new();
        for (name, of_one) in raw.limits {
            if name == "default" {
                default_limits = of_one.into_inner();
                continue;
            }
            let who = Identity::new(&name)
                .map_err(|invalid| PolicyFileError::at(text, &of_one.span(), invalid.to_string()))?;
            limits.insert(who, of_one.into_inner());
        }

        Ok(Self { rules, default_limits, limits })
    }

    fn rule(text: &str, rule: Spanned<RawRule>) -> Result<Rule, PolicyFileError> {
        let line = PolicyFileError::at(text, &rule.span(), "").line;
        let RawRule { who, may, prefix } = rule.into_inner();

        for (key, list) in [("who", &who), ("may", &may)] {
            if list.as_ref().is_empty() {
                return Err(PolicyFileError::at(
                    text,
                    &list.span(),
                    format!("`{key}` is empty: the rule allows nothing"),
                ));
            }
        }

        let who = who.into_inner().into_iter().map(|who| {
            let span = who.span();
            Who::parse(who.as_ref()).map_err(|problem| PolicyFileError::at(text, &span, problem))
        });
        let may = may.into_inner().into_iter().map(|may| {
            let span = may.span();
            may.as_ref().parse().map_err(|problem: String| PolicyFileError::at(text, &span, problem))
        });

        Ok(Rule { line, who: who.collect::<Result<_, _>>()?, may: may.collect::<Result<_, _>>()?, prefix })
    }

    /// The rules, in the order of the file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The first rule that allows this. `who` is `None` for an anonymous caller.
    pub fn decide(&self, who: Option<&Identity>, right: Right, what: RequestSubject<'_>) -> Result<&Rule, Denied> {
        let mut given = self.rules.iter().filter(|rule| rule.gives(who, right));
        if let Some(rule) = given.find(|rule| rule.covers(what)) {
            return Ok(rule);
        }

        let elsewhere =
            self.rules.iter().filter(|rule| rule.gives(who, right)).map(|rule| rule.prefix.clone()).collect();

        let prefix = match what {
            RequestSubject::Name(text) | RequestSubject::Under(text) => text.to_owned(),
            RequestSubject::Key(key) | RequestSubject::Keys { from: key, .. } => text_beginning(key),
            RequestSubject::Anywhere | RequestSubject::Cluster => String::new(),
        };

        Err(Denied { who: who.cloned(), right, what: what.to_string(), prefix, elsewhere })
    }

    /// The limits of an identity. Each limit of its own replaces the default. Anonymous callers have no limits: forbid them
    /// instead.
    pub fn limits(&self, who: &Identity) -> IdentityLimits {
        let own = self.limits.get(who).copied().unwrap_or_default();
        let default = self.default_limits;
        IdentityLimits {
            sessions: own.sessions.or(default.sessions),
            locks: own.locks.or(default.locks),
            waiters: own.waiters.or(default.waiters),
            bytes: own.bytes.or(default.bytes),
            calls_per_second: own.calls_per_second.or(default.calls_per_second),
            connections: own.connections.or(default.connections),
        }
    }
}

impl std::error::Error for Denied {}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { who, right, what, prefix, elsewhere } = self;
        let who = who.as_ref().map_or(Identity::ANONYMOUS, Identity::as_str);
        write!(f, "{who} may not {right} {what}: ")?;

        match &elsewhere[..] {
            [] => write!(f, "no rule gives it this right")?,
            prefixes => {
                let prefixes: Vec<_> = prefixes.iter().map(|prefix| format!("{prefix:?}")).collect();
                write!(f, "it has this right only under {}", prefixes.join(", "))?;
            }
        }

        write!(f, "; an operator can add a rule with who = [{who:?}], may = [\"{right}\"]")?;
        if prefix.is_empty() {
            f.write_str(" and no prefix")
        } else {
            write!(f, " and prefix = {prefix:?} or a beginning of it")
        }
    }
}
