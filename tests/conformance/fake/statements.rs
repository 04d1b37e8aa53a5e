//! The statements of a scenario that the fake cluster obeys.

use std::{str::FromStr as _, time::Duration};

use tonic::Code;

use super::arrivals::Method;
use crate::scenario::{parsed, time};

/// A statement for the fake cluster. Nodes are counted from 1.
#[derive(Clone, Debug)]
pub(crate) enum FakeStatement {
    Fault(Fault),
    /// Lets go what is held back.
    Tell,
    /// Forgets all faults, and tells.
    Heal,
    Node {
        node: usize,
        happens: Happening,
    },
    /// This node leads, or none does. `quietly`: streams and waits go on.
    Leader {
        node: Option<usize>,
        quietly: bool,
    },
    /// Whether the nodes that do not lead refuse, instead of doing the leader's work.
    FollowersRefuse(bool),
    /// The node is of the version before.
    Old(usize),
    RivalAcquires {
        name: String,
        shared: bool,
    },
    RivalReleases {
        name: String,
    },
    Revoke {
        name: String,
        reason: String,
        now: bool,
    },
    CloseSessions,
    ExpireSessions,
    ForgetSessions,
    CancelWaits {
        name: String,
    },
    BreakWatches {
        too_old: bool,
    },
    /// Each change is a message of its own.
    SplitWatches,
    /// Answers to opens and renewals tell this TTL, milliseconds, whatever the table has.
    TellTtl(u32),
}

/// What happens to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Happening {
    Dies,
    Returns,
    Freezes,
    Thaws,
    Cuts,
}

/// A rule that spoils calls.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) method: Method,
    pub(crate) node: Option<usize>,
    /// How many calls it lets pass before.
    pub(crate) skip: usize,
    /// How many calls it spoils.
    pub(crate) times: usize,
    pub(crate) effect: Effect,
}

/// How a call is spoilt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// It does not arrive, and there is no answer.
    Lost,
    /// It arrives; there is no answer.
    Unanswered,
    /// It arrives; the answer comes late.
    Slow(Hold),
    /// It arrives late, also if its caller is gone by then.
    Late(Hold),
    /// It arrives; the connection breaks.
    Broken,
    /// It does not arrive; an error with details.
    Refused { code: Code, reason: String, about: Vec<(String, String)> },
    /// It arrives; the answer is that the outcome is unknown.
    Unknown,
    /// It does not arrive; an error without details.
    Status(Code),
    /// It arrives; the answer comes twice on its stream.
    Twice,
    /// It arrives; the answer comes after the next one on its stream.
    Swapped,
    /// It arrives; the answer has no outcome.
    Empty,
}

/// How long something is held back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    Time(Duration),
    UntilTold,
}

impl FakeStatement {
    /// Reads a statement from its words.
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        let own = |text: &str| text.to_owned();
        Ok(match *words {
            ["fault", method, ref rest @ ..] => Self::Fault(Fault::parse(method, rest)?),
            ["tell"] => Self::Tell,
            ["heal"] => Self::Heal,
            ["node", node, happens] => Self::Node { node: parsed(node)?, happens: Happening::parse(happens)? },
            ["leader", "none"] => Self::Leader { node: None, quietly: false },
            ["leader", node] => Self::Leader { node: Some(parsed(node)?), quietly: false },
            ["leader", node, "quietly"] => Self::Leader { node: Some(parsed(node)?), quietly: true },
            ["followers", "refuse"] => Self::FollowersRefuse(true),
            ["followers", "forward"] => Self::FollowersRefuse(false),
            ["old", node] => Self::Old(parsed(node)?),
            ["rival", "acquire", name] => Self::RivalAcquires { name: own(name), shared: false },
            ["rival", "acquire", name, "shared"] => Self::RivalAcquires { name: own(name), shared: true },
            ["rival", "release", name] => Self::RivalReleases { name: own(name) },
            ["operator", "revokes", name, reason, ref now @ ..] if matches!(now, [] | ["now"]) => {
                let reason = reason.strip_prefix("reason=").ok_or("there is no reason=")?;
                Self::Revoke { name: own(name), reason: own(reason), now: !now.is_empty() }
            }
            ["operator", "closes"] => Self::CloseSessions,
            ["cluster", "expires"] => Self::ExpireSessions,
            ["cluster", "forgets"] => Self::ForgetSessions,
            ["cluster", "cancels", name] => Self::CancelWaits { name: own(name) },
            ["cluster", "tells-ttl", ttl] => Self::TellTtl(u32::try_from(time(ttl)?.as_millis()).unwrap_or(u32::MAX)),
            ["watch", "breaks"] => Self::BreakWatches { too_old: false },
            ["watch", "splits"] => Self::SplitWatches,
            ["watch", "too-old"] => Self::BreakWatches { too_old: true },
            _ => return Err("there is no such statement".to_owned()),
        })
    }
}

impl Happening {
    fn parse(word: &str) -> Result<Self, String> {
        Ok(match word {
            "dies" => Self::Dies,
            "returns" => Self::Returns,
            "freezes" => Self::Freezes,
            "thaws" => Self::Thaws,
            "cuts" => Self::Cuts,
            _ => return Err(format!("a node {word}? It dies, returns, freezes, thaws or cuts")),
        })
    }
}

impl Fault {
    fn parse(method: &str, words: &[&str]) -> Result<Self, String> {
        let method = Method::named(method)?;
        let mut fault = Self { method, node: None, skip: 0, times: 1, effect: Effect::Lost };
        let mut words = words;
        while let [word, rest @ ..] = words
            && let Some((option, value)) = word.split_once('=')
        {
            match option {
                "node" => fault.node = Some(parsed(value)?),
                "skip" => fault.skip = parsed(value)?,
                "times" if value == "all" => fault.times = usize::MAX,
                "times" => fault.times = parsed(value)?,
                _ => return Err(format!("a fault has no option {option:?}")),
            }
            words = rest;
        }
        fault.effect = Effect::parse(words)?;
        Ok(fault)
    }
}

impl Effect {
    fn parse(words: &[&str]) -> Result<Self, String> {
        Ok(match *words {
            ["lost"] => Self::Lost,
            ["unanswered"] => Self::Unanswered,
            ["slow", hold] => Self::Slow(Hold::parse(hold)?),
            ["late", hold] => Self::Late(Hold::parse(hold)?),
            ["broken"] => Self::Broken,
            ["refused", code, reason, retry, ref about @ ..] => {
                let mut about = crate::scenario::named(about)?;
                about.insert("retry".to_owned(), retry.to_owned());
                let about = about.into_iter().collect();
                Self::Refused { code: read_code(code)?, reason: reason.to_owned(), about }
            }
            ["unknown"] => Self::Unknown,
            ["status", code] => Self::Status(read_code(code)?),
            ["twice"] => Self::Twice,
            ["swapped"] => Self::Swapped,
            ["empty"] => Self::Empty,
            _ => return Err("there is no such effect".to_owned()),
        })
    }
}

impl Hold {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "until-told" { Ok(Self::UntilTold) } else { time(text).map(Self::Time) }
    }
}

/// A gRPC status code by its name, as `FAILED_PRECONDITION`.
fn read_code(name: &str) -> Result<Code, String> {
    let wanted = name.replace('_', "").to_lowercase();
    let known = (0..17).map(Code::from).find(|code| format!("{code:?}").to_lowercase() == wanted);
    known.ok_or_else(|| format!("{name:?} is no status code"))
}

impl Method {
    /// The method with this name in scenarios.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        Self::from_str(name)
    }
}
