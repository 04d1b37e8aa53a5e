//! Scenarios: text files of statements. Their language is defined in `src/clients/conformance/README.md`.
//!
//! A statement that cannot be read is a mistake in the scenario: an error that names the file and the line.

use std::{collections::BTreeMap, path::Path, time::Duration};

use crate::fake::statements::FakeStatement;

/// A scenario.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// The name of its file, without the extension.
    pub(crate) name: String,
    /// Its first line: the rules, and what it says.
    pub(crate) title: String,
    pub(crate) nodes: usize,
    /// The nodes that the client is told, counted from 1.
    pub(crate) given: Vec<usize>,
    pub(crate) options: ClientOptions,
    pub(crate) steps: Vec<Line>,
}

/// The options of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientOptions {
    pub(crate) ttl: Duration,
    pub(crate) call_limit: Duration,
    pub(crate) attempt_limit: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { ttl: seconds(4), call_limit: seconds(20), attempt_limit: seconds(5) }
    }
}

/// A statement, and the number of its line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) text: String,
    pub(crate) statement: Statement,
}

/// What a statement asks for.
#[derive(Clone, Debug)]
pub(crate) enum Statement {
    /// Begins a step of the driver.
    Begin {
        id: String,
        command: DriverCommand,
    },
    /// Waits for the outcome of a step.
    Await {
        id: String,
        outcome: String,
        conditions: Vec<Condition>,
    },
    /// Waits for an event of a lock, an observer or a watch.
    Told {
        id: String,
        event: String,
        conditions: Vec<Condition>,
    },
    /// Waits for an event that has these values, whatever comes before.
    FinallyTold {
        id: String,
        event: String,
        conditions: Vec<Condition>,
    },
    /// No event has these values.
    NeverTold {
        id: String,
        event: String,
        conditions: Vec<Condition>,
    },
    /// The lock is not told to be lost.
    NotTold {
        id: String,
    },
    /// Stops the driver's process, or lets it go on.
    Stop,
    Continue,
    /// For the fake cluster.
    Fake(FakeStatement),
    /// Waits until the table has ended the session of a lock.
    PassLease {
        lock: String,
    },
    /// Waits.
    Pass(Duration),
    /// Waits for the holder of a lock; `None`: it is free.
    Held {
        name: String,
        by: Option<String>,
    },
    Queued {
        name: String,
        length: u64,
    },
    Sessions(usize),
    Arrived {
        method: String,
        count: usize,
        node: Option<usize>,
        bound: Bound,
    },
    /// `None`: the last one.
    Request {
        method: String,
        place: Option<usize>,
        conditions: Vec<Condition>,
    },
    /// Acquires and releases a lock, many times.
    Cycle {
        name: String,
        times: usize,
    },
    Mark,
    Quiet {
        method: String,
        time: Duration,
    },
}

/// How many calls there must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bound {
    /// At least so many: waits for them.
    Least,
    /// At most so many, up to now.
    Most,
    /// So many, up to now.
    Exactly,
}

/// A step: what the driver is to do, with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct DriverCommand {
    pub(crate) verb: String,
    /// The arguments that have no name.
    pub(crate) words: Vec<String>,
    /// The arguments of the form `name=value`, and flags, whose value is empty.
    pub(crate) named: BTreeMap<String, String>,
}

/// A field that must have a value.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) field: String,
    pub(crate) comparison: Comparison,
    pub(crate) value: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Comparison {
    Equal,
    Unequal,
    AtMost,
    AtLeast,
}

/// The verbs of the driver, with the number of their unnamed arguments.
const VERBS: &[(&str, usize)] = &[
    ("acquire", 1),
    ("cancel", 1),
    ("release", 1),
    ("remaining", 1),
    ("ensure", 2),
    ("update", 3),
    ("get", 1),
    ("force-release", 1),
    ("campaign", 2),
    ("proclaim", 2),
    ("resign", 1),
    ("leader", 1),
    ("observe", 1),
    ("watch", 1),
    ("close", 0),
];

/// Arguments of the driver's verbs that have no value.
const FLAGS: &[&str] = &["shared", "keep", "must-exist"];

impl DriverCommand {
    /// A command with one argument.
    pub(crate) fn simple(verb: &str, word: &str) -> Self {
        Self { verb: verb.to_owned(), words: vec![word.to_owned()], named: BTreeMap::new() }
    }
}

impl Scenario {
    /// Reads a scenario from its file.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Self::parse(&name, &text)
    }

    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, String> {
        let title = text.lines().next().unwrap_or_default().trim_start_matches('#').trim().to_owned();
        let rules = title.split_once('.').map(|(rules, _)| rules).unwrap_or_default();
        let is_rule = |word: &str| word.strip_prefix('C').is_some_and(|number| number.parse::<u8>().is_ok());
        if rules.is_empty() || !rules.split(' ').all(is_rule) {
            return Err(format!("{name}.txt: the first line is not of the form \"# C1 C2. What it says.\""));
        }

        let mut scenario = Self {
            name: name.to_owned(),
            title,
            nodes: 1,
            given: Vec::new(),
            options: ClientOptions::default(),
            steps: Vec::new(),
        };
        for (number, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if !text.is_empty() && !text.starts_with('#') {
                scenario.add(number, text).map_err(|why| format!("{name}.txt, line {number}: {why}: {text}"))?;
            }
        }
        if scenario.given.is_empty() {
            scenario.given = (1..=scenario.nodes).collect();
        }
        Ok(scenario)
    }

    /// The rules that it is about.
    pub(crate) fn rules(&self) -> impl Iterator<Item = &str> {
        self.title.split('.').next().unwrap_or_default().split(' ')
    }

    fn add(&mut self, number: usize, text: &str) -> Result<(), String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["nodes", count, ref rest @ ..] => {
                self.nodes = count.parse().map_err(|_| "not a number of nodes")?;
                let given = named(rest)?;
                let given = given.get("given").map(|given| given.split(',').map(str::parse).collect());
                self.given = given.unwrap_or(Ok(Vec::new())).map_err(|_| "not a list of nodes")?;
            }
            ["client", ref options @ ..] => {
                for (name, value) in named(options)? {
                    let option = match name.as_str() {
                        "ttl" => &mut self.options.ttl,
                        "call" => &mut self.options.call_limit,
                        "attempt" => &mut self.options.attempt_limit,
                        _ => return Err("no such option of the client".to_owned()),
                    };
                    *option = time(&value)?;
                }
            }
            _ => self.steps.push(Line { number, text: text.to_owned(), statement: statement(text, &words)? }),
        }
        Ok(())
    }
}

fn statement(text: &str, words: &[&str]) -> Result<Statement, String> {
    match *words {
        [id, "=", ..] => {
            let command = text.split_once('=').map(|(_, command)| command).unwrap_or_default();
            Ok(Statement::Begin { id: id.to_owned(), command: driver_command(command)? })
        }
        [id, outcome, ref rest @ ..] if id.ends_with(':') => {
            let (outcome, mut conditions) = (outcome.to_owned(), Vec::new());
            let mut rest = rest;
            if let [kind, others @ ..] = rest
                && outcome == "failed"
                && !kind.contains('=')
            {
                let comparison = Comparison::Equal;
                conditions.push(Condition { field: "kind".to_owned(), comparison, value: (*kind).to_owned() });
                rest = others;
            }
            conditions.extend(read_conditions(rest)?);
            Ok(Statement::Await { id: id.trim_end_matches(':').to_owned(), outcome, conditions })
        }
        [id, "told", event, ref rest @ ..] => {
            Ok(Statement::Told { id: id.to_owned(), event: event.to_owned(), conditions: read_conditions(rest)? })
        }
        [id, "finally", "told", event, ref rest @ ..] => {
            let conditions = read_conditions(rest)?;
            Ok(Statement::FinallyTold { id: id.to_owned(), event: event.to_owned(), conditions })
        }
        [id, "never", "told", event, ref rest @ ..] => {
            let conditions = read_conditions(rest)?;
            Ok(Statement::NeverTold { id: id.to_owned(), event: event.to_owned(), conditions })
        }
        [id, "not", "told"] => Ok(Statement::NotTold { id: id.to_owned() }),
        ["stop"] => Ok(Statement::Stop),
        ["continue"] => Ok(Statement::Continue),
        ["mark"] => Ok(Statement::Mark),
        ["pass", passing] => Ok(Statement::Pass(time(passing)?)),
        ["pass-lease", lock] => Ok(Statement::PassLease { lock: lock.to_owned() }),
        ["held", name, by] => Ok(Statement::Held { name: name.to_owned(), by: Some(by.to_owned()) }),
        ["free", name] => Ok(Statement::Held { name: name.to_owned(), by: None }),
        ["queued", name, length] => Ok(Statement::Queued { name: name.to_owned(), length: parsed(length)? }),
        ["sessions", count] => Ok(Statement::Sessions(parsed(count)?)),
        [word @ ("arrived" | "arrived-most" | "arrived-only"), method, count, ref rest @ ..] => {
            let node = named(rest)?.get("node").map(|node| parsed(node)).transpose()?;
            let bound = match word {
                "arrived" => Bound::Least,
                "arrived-most" => Bound::Most,
                _ => Bound::Exactly,
            };
            Ok(Statement::Arrived { method: method.to_owned(), count: parsed(count)?, node, bound })
        }
        ["request", method, place, ref rest @ ..] => {
            let place = if place == "last" { None } else { Some(parsed(place)?) };
            let conditions = read_conditions(rest)?;
            Ok(Statement::Request { method: method.to_owned(), place, conditions })
        }
        ["cycle", name, times] => Ok(Statement::Cycle { name: name.to_owned(), times: parsed(times)? }),
        ["quiet", method, quiet] => Ok(Statement::Quiet { method: method.to_owned(), time: time(quiet)? }),
        _ => FakeStatement::parse(words).map(Statement::Fake),
    }
}

fn driver_command(text: &str) -> Result<DriverCommand, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [verb, arguments @ ..] = &words[..] else { return Err("there is no command".to_owned()) };
    let Some((_, count)) = VERBS.iter().find(|(known, _)| known == verb) else {
        return Err(format!("the driver has no command {verb:?}"));
    };

    let is_named = |word: &&&str| word.contains('=') || FLAGS.contains(*word);
    let words: Vec<String> = arguments.iter().filter(|word| !is_named(word)).map(|word| (*word).to_owned()).collect();
    if words.len() != *count {
        return Err(format!("{verb} has {count} arguments without a name"));
    }
    let split = |word: &&str| {
        word.split_once('=')
            .map_or(((*word).to_owned(), String::new()), |(name, value)| (name.to_owned(), value.to_owned()))
    };
    let named = arguments.iter().filter(is_named).map(split).collect();
    Ok(DriverCommand { verb: (*verb).to_owned(), words, named })
}

fn read_conditions(words: &[&str]) -> Result<Vec<Condition>, String> {
    let signs = [
        ("<=", Comparison::AtMost),
        (">=", Comparison::AtLeast),
        ("!=", Comparison::Unequal),
        ("=", Comparison::Equal),
    ];
    let read = |word: &&str| {
        let found = signs.iter().find_map(|(sign, comparison)| Some((word.split_once(sign)?, *comparison)));
        let ((field, value), comparison) = found.ok_or(format!("{word:?} is no condition"))?;
        Ok(Condition { field: field.to_owned(), comparison, value: value.to_owned() })
    };
    words.iter().map(read).collect()
}

/// Arguments of the form `name=value`.
pub(crate) fn named(words: &[&str]) -> Result<BTreeMap<String, String>, String> {
    let read = |word: &&str| {
        let (name, value) = word.split_once('=').ok_or(format!("{word:?} is not of the form name=value"))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    words.iter().map(read).collect()
}

/// A time such as `250ms` or `2s`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time: write 250ms or 2s");
    if let Some(ms) = text.strip_suffix("ms") {
        return ms.parse().map(Duration::from_millis).map_err(|_| wrong());
    }
    let seconds = text.strip_suffix('s').ok_or_else(wrong)?;
    seconds.parse().map(Duration::from_secs).map_err(|_| wrong())
}

pub(crate) fn parsed<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}
