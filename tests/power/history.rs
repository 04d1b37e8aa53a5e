//! The driver's reports, and the states of a store that they permit.
//!
//! The store promises more than to keep acknowledged operations: it recovers a *prefix* of all requested operations, since it writes
//! in order. So a history is a list of single steps, and a recovered state must be the one after some step between the last
//! acknowledged and the last begun, or the rest of such a state after a snapshot that contradicts it. Any other state has lost data
//! or mixed old with new.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    str::FromStr,
};

/// A term and an index.
pub(crate) type Id = (u64, u64);

/// A report of the driver, one line each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    /// It begins to open the log.
    Opening,
    /// The log is open, with this state.
    Opened { vote: (u64, bool), purged: Option<Id>, last: Option<Id> },
    /// It begins operation `number`.
    Begin { number: u64, operation: Operation },
    /// All operations up to this one are acknowledged.
    Done { number: u64 },
    /// It begins to close the log.
    Closing,
    /// The log is closed; all operations are acknowledged.
    Closed,
}

/// An operation on a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Vote {
        term: u64,
        is_committed: bool,
    },
    Append {
        term: u64,
        first: u64,
        count: u64,
    },
    /// Removes the entry at this index and all later ones.
    Truncate {
        from: u64,
    },
    Purge {
        upto: Id,
    },
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = |id: &Option<Id>| id.map_or("-".to_owned(), |(term, index)| format!("{term}.{index}"));
        match self {
            Self::Opening => write!(f, "opening"),
            Self::Opened { vote: (term, is_committed), purged, last } => {
                write!(f, "opened {term} {is_committed} {} {}", id(purged), id(last))
            }
            Self::Begin { number, operation } => match operation {
                Operation::Vote { term, is_committed } => write!(f, "vote {number} {term} {is_committed}"),
                Operation::Append { term, first, count } => write!(f, "append {number} {term} {first} {count}"),
                Operation::Truncate { from } => write!(f, "truncate {number} {from}"),
                Operation::Purge { upto } => write!(f, "purge {number} {}", id(&Some(*upto))),
            },
            Self::Done { number } => write!(f, "done {number}"),
            Self::Closing => write!(f, "closing"),
            Self::Closed => write!(f, "closed"),
        }
    }
}

impl FromStr for Said {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split(' ').collect();
        parse(&words).ok_or_else(|| format!("not a report of the driver: {line:?}"))
    }
}

fn parse(words: &[&str]) -> Option<Said> {
    let number = |word: &str| word.parse::<u64>().ok();
    let flag = |word: &str| word.parse::<bool>().ok();
    let id = |word: &str| -> Option<Option<Id>> {
        match word.split_once('.') {
            Some((term, index)) => Some(Some((number(term)?, number(index)?))),
            None => (word == "-").then_some(None),
        }
    };
    let begin = |count, operation| Some(Said::Begin { number: number(count)?, operation });
    match *words {
        ["opening"] => Some(Said::Opening),
        ["opened", term, is_committed, purged, last] => {
            Some(Said::Opened { vote: (number(term)?, flag(is_committed)?), purged: id(purged)?, last: id(last)? })
        }
        ["vote", count, term, is_committed] => {
            begin(count, Operation::Vote { term: number(term)?, is_committed: flag(is_committed)? })
        }
        ["append", count, term, first, entries] => {
            begin(count, Operation::Append { term: number(term)?, first: number(first)?, count: number(entries)? })
        }
        ["truncate", count, from] => begin(count, Operation::Truncate { from: number(from)? }),
        ["purge", count, upto] => begin(count, Operation::Purge { upto: id(upto)?? }),
        ["done", count] => Some(Said::Done { number: number(count)? }),
        ["closing"] => Some(Said::Closing),
        ["closed"] => Some(Said::Closed),
        _ => None,
    }
}

/// The contents of a log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct State {
    pub(crate) vote: (u64, bool),
    pub(crate) purged: Option<Id>,
    /// The terms of the entries after `purged`. The term and index of an entry determine its payload.
    pub(crate) terms: VecDeque<u64>,
}

impl State {
    /// The index of the first entry.
    pub(crate) fn first(&self) -> u64 {
        self.purged.map_or(0, |(_, index)| index + 1)
    }

    /// The last entry, or the last purged one.
    pub(crate) fn last(&self) -> Option<Id> {
        match self.terms.back() {
            Some(term) => Some((*term, self.next() - 1)),
            None => self.purged,
        }
    }

    /// The index of the next entry.
    pub(crate) fn next(&self) -> u64 {
        self.first() + self.terms.len() as u64
    }

    /// The state after opening with a snapshot that contradicts it. `None`: the snapshot does not contradict it.
    ///
    /// The entries in a snapshot are committed, perhaps by other nodes. So contradicting entries are not, nor are their successors.
    fn taken_up(&self, snapshot: Option<Id>) -> Option<Self> {
        let snapshot = snapshot.filter(|snapshot| self.first() <= snapshot.1)?;
        let contradicts = match self.terms.get((snapshot.1 - self.first()) as usize) {
            Some(term) => *term != snapshot.0,
            None => self.last() > Some(snapshot),
        };
        contradicts.then(|| Self { vote: self.vote, purged: Some(snapshot), terms: VecDeque::new() })
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Vote(vote) => self.vote = vote,
            Step::Put(term) => self.terms.push_back(term),
            Step::Cut => drop(self.terms.pop_back()),
            Step::Purge(upto) => {
                let purged = (upto.1 + 1 - self.first()).min(self.terms.len() as u64);
                self.terms.drain(..purged as usize);
                self.purged = Some(upto);
            }
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vote {:?}, purged {:?}, last {:?}", self.vote, self.purged, self.last())
    }
}

/// An atomic write of the store.
#[derive(Clone, Copy, Debug)]
enum Step {
    Vote((u64, bool)),
    /// One entry, of this term.
    Put(u64),
    /// Removes the last entry.
    Cut,
    Purge(Id),
}

/// The driver's current operation, so that tests can count the operations that they interrupted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
    Opening,
    Voting,
    Appending,
    Truncating,
    Purging,
    Closing,
    Idle,
}

/// The acknowledged state, and the steps begun since.
#[derive(Clone, Debug)]
pub(crate) struct History {
    acknowledged: State,
    steps: VecDeque<Step>,
    /// The state after all steps.
    begun: State,
    /// The unacknowledged operations: number, count of steps, phase.
    operations: VecDeque<(u64, usize, Phase)>,
    /// The furthest purge begun: a snapshot exists up to there.
    pub(crate) snapshot: Option<Id>,
    pub(crate) acknowledgements: u64,
    is_opening: bool,
    is_closing: bool,
}

impl History {
    pub(crate) fn new() -> Self {
        Self {
            acknowledged: State::default(),
            steps: VecDeque::new(),
            begun: State::default(),
            operations: VecDeque::new(),
            snapshot: None,
            acknowledgements: 0,
            is_opening: false,
            is_closing: false,
        }
    }

    /// The phases of all operations in progress.
    pub(crate) fn phases(&self) -> BTreeSet<Phase> {
        let unfinished = self.operations.iter().map(|(_, _, phase)| *phase);
        let opening = self.is_opening.then_some(Phase::Opening);
        let phases: BTreeSet<Phase> =
            unfinished.chain(opening).chain(self.is_closing.then_some(Phase::Closing)).collect();
        if phases.is_empty() { [Phase::Idle].into() } else { phases }
    }

    /// The minimal contents of the log.
    pub(crate) fn acknowledged(&self) -> &State {
        &self.acknowledged
    }

    /// Adds a report. An error: a store was opened with a state that the history does not permit.
    pub(crate) fn hear(&mut self, said: &Said) -> Result<(), String> {
        match said {
            Said::Opening => (self.is_opening, self.is_closing) = (true, false),
            Said::Opened { vote, purged, last } => {
                self.is_opening = false;
                self.settle(|state| state.vote == *vote && state.purged == *purged && state.last() == *last)?;
            }
            Said::Begin { number, operation } => self.begin(*number, *operation),
            Said::Done { number } => {
                self.acknowledgements += 1;
                while self.operations.front().is_some_and(|(first, _, _)| first <= number) {
                    let (_, steps, _) = self.operations.pop_front().expect("it was seen");
                    self.steps.drain(..steps).for_each(|step| self.acknowledged.take(step));
                }
            }
            Said::Closing => self.is_closing = true,
            Said::Closed => {
                self.is_closing = false;
                self.operations.clear();
                self.steps.clear();
                self.acknowledged = self.begun.clone();
            }
        }
        Ok(())
    }

    fn begin(&mut self, number: u64, operation: Operation) {
        let (phase, steps) = match operation {
            Operation::Vote { term, is_committed } => (Phase::Voting, vec![Step::Vote((term, is_committed))]),
            Operation::Append { term, first, count } => {
                assert_eq!(first, self.begun.next(), "the driver appends at the end");
                (Phase::Appending, vec![Step::Put(term); count as usize])
            }
            Operation::Truncate { from } => {
                (Phase::Truncating, vec![Step::Cut; self.begun.next().saturating_sub(from) as usize])
            }
            Operation::Purge { upto } => {
                self.snapshot = self.snapshot.max(Some(upto));
                (Phase::Purging, vec![Step::Purge(upto)])
            }
        };
        steps.iter().for_each(|step| self.begun.take(*step));
        self.operations.push_back((number, steps.len(), phase));
        self.steps.extend(steps);
    }

    /// Checks whether a store may have this state. The error names the permitted states.
    pub(crate) fn judge(&self, found: &State) -> Result<(), String> {
        self.clone().recovered(found)
    }

    /// Another process has opened the store after the driver's end, with this state, which it must keep from now on.
    pub(crate) fn recovered(&mut self, found: &State) -> Result<(), String> {
        (self.is_opening, self.is_closing) = (false, false);
        self.settle(|state| state == found).map_err(|must| format!("it holds {found}; {must}"))
    }

    /// Takes the first state that fits as the acknowledged one.
    fn settle(&mut self, fits: impl Fn(&State) -> bool) -> Result<(), String> {
        let mut state = self.acknowledged.clone();
        let mut rest = self.steps.iter();
        while !fits(&state) {
            if let Some(taken_up) = state.taken_up(self.snapshot).filter(|state| fits(state)) {
                state = taken_up;
                break;
            }
            let Some(step) = rest.next() else {
                let least = &self.acknowledged;
                let most = &self.begun;
                return Err(format!("acknowledged was {least}; {} steps on, begun was {most}", self.steps.len()));
            };
            state.take(*step);
        }
        self.operations.clear();
        self.steps.clear();
        self.begun = state.clone();
        self.acknowledged = state;
        Ok(())
    }
}
