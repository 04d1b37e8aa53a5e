//! Watches: no gap, no repetition, no reordering, to the end of the run.
//!
//! A watch reports each change in its range once, in the order of revisions. When it has reported a revision, it has reported all changes
//! of earlier ones; when it has claimed progress, all up to that revision. A change that was acknowledged must be reported within the
//! `watch_bound_ms` of the meta, without time under faults, by each watch that is there for so long. Without that promise, it cannot be
//! told whether a watch that is open at the end of the run still goes on: one that lacks an acknowledged change leaves this undecided.
//!
//! What a watch reports must also have happened: a value that no transaction can have put is reported by [`super::timeline`].

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use super::{
    ends::RegisterEnds,
    revisions::EndedEarly,
    timeline::{RegisterChange, Timelines},
};
use crate::{
    history::{Fact, TxnRange, WatchedChange},
    run::{MS, Mark, Run, Told},
    show::Ms,
    verdict::{Evidence, Finding, Investigation, Property},
};

enum WatchAnomaly<'r> {
    Gap { watch: &'r str, key: &'r str, change: RegisterChange<'r>, until: (u64, usize) },
    Late { watch: &'r str, key: &'r str, change: RegisterChange<'r>, bound_ns: u64, begun: usize },
    Repeated { watch: &'r str, key: &'r str, revision: u64, lines: [usize; 2] },
    Reordered { watch: &'r str, revision: u64, after: u64, lines: [usize; 2] },
    Outside { watch: &'r str, key: &'r str, lines: [usize; 2] },
    NotDeleted { watch: &'r str, key: &'r str, revision: u64, lines: [usize; 2] },
    PutAsDelete { watch: &'r str, key: &'r str, revision: u64, lines: [usize; 2] },
}

impl fmt::Display for WatchAnomaly<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gap { watch, key, change, until } => {
                let revision = change.revision;
                write!(
                    f,
                    "gap: watch {watch:?} lacks the change of {key:?} at revision {revision}, and went on to {}",
                    until.0
                )
            }
            Self::Late { watch, key, change, bound_ns, .. } => {
                let revision = change.revision;
                let bound = Ms(*bound_ns);
                write!(
                    f,
                    "gap: watch {watch:?} had not reported the change of {key:?} at revision {revision} after {bound}"
                )
            }
            Self::Repeated { watch, key, revision, .. } => {
                write!(f, "repetition: watch {watch:?} reported the change of {key:?} at revision {revision} twice")
            }
            Self::Reordered { watch, revision, after, .. } => {
                write!(
                    f,
                    "reordering: watch {watch:?} reported revision {revision} after it had reported all up to {after}"
                )
            }
            Self::Outside { watch, key, .. } => {
                write!(f, "watch {watch:?} reported {key:?}, which is not in its range")
            }
            Self::NotDeleted { watch, key, revision, .. } => {
                write!(
                    f,
                    "watch {watch:?} reported that {key:?} was deleted at revision {revision}, and nothing did that"
                )
            }
            Self::PutAsDelete { watch, key, revision, .. } => {
                write!(
                    f,
                    "dirty update: watch {watch:?} reported that {key:?} was deleted at revision {revision}, which wrote it"
                )
            }
        }
    }
}

impl Evidence for WatchAnomaly<'_> {
    fn lines(&self) -> Vec<usize> {
        match self {
            Self::Gap { change, until, .. } => vec![change.line, until.1],
            Self::Late { change, begun, .. } => vec![change.line, *begun],
            Self::Repeated { lines, .. } | Self::Reordered { lines, .. } => lines.to_vec(),
            Self::Outside { lines, .. } | Self::NotDeleted { lines, .. } | Self::PutAsDelete { lines, .. } => {
                lines.to_vec()
            }
        }
    }
}

/// A change that a watch reported.
#[derive(Clone, Copy)]
struct ReportedChange {
    line: usize,
    told_ns: u64,
    /// Whether the register was reported as deleted or ended.
    is_end: bool,
}

/// A watch, as far as the history was read.
struct WatchState<'r> {
    range: &'r TxnRange,
    begun: Mark,
    after: u64,
    /// The revision below which all is reported, and its line.
    reached: (u64, usize),
    /// The revision up to which all is reported, and its line.
    complete: (u64, usize),
    /// The changes that it reported, by register and revision.
    reported: HashMap<(&'r str, u64), ReportedChange>,
    /// The moment at which it was over, unless it is open.
    ended_ns: Option<u64>,
}

/// Checks all watches. Returns also the registers whose leases ended too early, which are another property's violations.
pub(super) fn check<'r>(
    run: &'r Run<'_>,
    timelines: &'r Timelines<'r>,
    ends: &RegisterEnds<'_>,
) -> (Finding, Vec<EndedEarly>) {
    let mut investigation = Investigation::new(Property::Watches);
    investigation.count("changes reported", 0);
    let mut watches: BTreeMap<&str, WatchState<'_>> = BTreeMap::new();
    let is_restored = run.facts.iter().any(|told| matches!(told.fact, Fact::Restored));

    for told in &run.facts {
        if let Fact::Watching { watch, range, after } = told.fact {
            investigation.count("watches", 1);
            let begun = (told.time_ns, told.line);
            if watches.insert(watch, WatchState::begin(range, *after, begun)).is_some() {
                investigation.undecided(format!("two watches have the name {watch:?}"));
            }
        } else if let Fact::Watched { watch, revision, changes } = told.fact {
            let Some(state) = watches.get_mut(&**watch) else {
                // A watch that began before the cluster was restored has no begin here.
                if !is_restored {
                    investigation.undecided(format!("watch {watch:?} reports, and has no begin"));
                }
                continue;
            };
            investigation.count("changes reported", changes.len() as u64);
            state.report(watch, *revision, changes, told, &mut investigation);
        } else if let Fact::WatchProgress { watch, revision } = told.fact
            && let Some(state) = watches.get_mut(&**watch)
        {
            investigation.count("claims of progress", 1);
            state.complete = state.complete.max((*revision, told.line));
        } else if let Fact::WatchEnded { watch, .. } = told.fact
            && let Some(state) = watches.get_mut(&**watch)
        {
            state.ended_ns.get_or_insert(told.time_ns);
        }
    }

    let mut ended_early = Vec::new();
    for (watch, state) in &watches {
        state.find_gaps(watch, run, (timelines, ends), &mut investigation);
        let early = state.find_false_ends(watch, run, (timelines, ends), &mut investigation);
        ended_early.extend(early);
    }
    (investigation.close(), ended_early)
}

impl<'r> WatchState<'r> {
    fn begin(range: &'r TxnRange, after: u64, begun: Mark) -> Self {
        let start = (after, begun.1);
        let reported = HashMap::new();
        Self { range, begun, after, reached: start, complete: start, reported, ended_ns: None }
    }

    /// The moment until which it had to report. None if the history breaks off before its end.
    fn listened_ns(&self, run: &Run<'_>) -> Option<u64> {
        self.ended_ns.or_else(|| run.end_line.map(|_| run.last_ns))
    }

    fn report(
        &mut self,
        watch: &'r str,
        revision: u64,
        changes: &'r [WatchedChange],
        told: &Told<'_>,
        investigation: &mut Investigation,
    ) {
        let line = told.line;
        let mut is_repeated = false;
        for WatchedChange { key, now } in changes {
            if !self.range.contains(key) {
                investigation.report(&WatchAnomaly::Outside { watch, key, lines: [self.begun.1, line] });
            }
            let reported = ReportedChange { line, told_ns: told.time_ns, is_end: now.is_none() };
            if let Some(first) = self.reported.insert((key, revision), reported) {
                is_repeated = true;
                investigation.report(&WatchAnomaly::Repeated { watch, key, revision, lines: [first.line, line] });
            }
        }

        let (after, after_line) = if self.complete.0 >= revision { self.complete } else { self.reached };
        if !is_repeated && (self.complete.0 >= revision || self.reached.0 > revision) {
            let lines = [after_line, line];
            investigation.report(&WatchAnomaly::Reordered { watch, revision, after, lines });
        }
        self.reached = self.reached.max((revision, line));
    }

    /// Finds the changes that the watch has passed over, or not reported in time.
    fn find_gaps(
        &self,
        watch: &'r str,
        run: &Run<'_>,
        (timelines, ends): (&'r Timelines<'r>, &RegisterEnds<'_>),
        investigation: &mut Investigation,
    ) {
        let bound_ns = run.meta.watch_bound_ms.map(|bound_ms| bound_ms.saturating_mul(MS));
        let listened_ns = self.listened_ns(run);
        let from = self.range.from.as_deref().unwrap_or_default();
        let registers = timelines.registers.range(from..).take_while(|(key, _)| self.range.contains(key));

        for (key, changes) in registers {
            let first = changes.partition_point(|change| change.revision <= self.after);
            for place in first..changes.len() {
                let change = changes[place];
                let before = place.checked_sub(1).map(|before| changes[before]);
                if self.reported.contains_key(&(*key, change.revision))
                    || !is_certain((timelines, ends), key, &change, before)
                {
                    continue;
                }

                let passed = [self.complete, self.reached];
                let is_passed = change.revision <= self.complete.0 || change.revision < self.reached.0;
                if is_passed {
                    let until = passed.into_iter().max().unwrap_or(self.complete);
                    investigation.report(&WatchAnomaly::Gap { watch, key, change, until });
                    continue;
                }

                // A watch that begins later has what was acknowledged before to catch up with.
                let since_ns = change.acked_ns().max(self.begun.0);
                let Some(listened_ns) = listened_ns.filter(|listened_ns| since_ns < *listened_ns) else { continue };
                match bound_ns {
                    Some(bound_ns) if run.calm.after(since_ns, bound_ns) < listened_ns => {
                        let begun = self.begun.1;
                        investigation.report(&WatchAnomaly::Late { watch, key, change, bound_ns, begun });
                    }
                    None if self.ended_ns.is_none() => {
                        investigation.undecided("the meta promises no watch_bound_ms");
                    }
                    Some(_) | None => {}
                }
            }
        }
    }

    /// Finds registers that were reported as deleted, and that were written then, or that nothing can have ended. Returns those whose
    /// leases ended too early.
    fn find_false_ends(
        &self,
        watch: &'r str,
        run: &Run<'_>,
        (timelines, ends): (&'r Timelines<'r>, &RegisterEnds<'_>),
        investigation: &mut Investigation,
    ) -> Vec<EndedEarly> {
        let ends_reported = self.reported.iter().filter(|(_, reported)| reported.is_end);
        let mut ends_reported: Vec<_> =
            ends_reported.map(|((key, revision), reported)| (*revision, *key, *reported)).collect();
        ends_reported.sort_unstable_by_key(|(revision, key, _)| (*revision, *key));

        let mut ended_early = Vec::new();
        for (revision, key, ReportedChange { line, told_ns, .. }) in ends_reported {
            let change = timelines.last_change(key, revision).filter(|change| change.revision == revision);
            let Some(change) = change else { continue };
            // The timeline has the put, from an answer or from what another one saw, and not the end.
            if change.now.is_some() && change.is_certain {
                let lines = [change.line, line];
                investigation.report(&WatchAnomaly::PutAsDelete { watch, key, revision, lines });
            }
            if change.now.is_some() || change.by.is_some() {
                continue;
            }

            // What the watch did not see come may be older than the history.
            let Some(below) = revision.checked_sub(1) else { continue };
            let Some(before) = timelines.last_change(key, below) else { continue };
            let may_have_ended = before.now.is_none_or(|now| ends.may_have_ended(now.put, told_ns));
            if may_have_ended || timelines.may_have_deleted(key, revision, told_ns) {
                continue;
            }

            match EndedEarly::from_change(run, key, before, (told_ns, line)) {
                Some(early) => ended_early.push(early),
                None => {
                    let lines = [before.line, line];
                    investigation.report(&WatchAnomaly::NotDeleted { watch, key, revision, lines });
                }
            }
        }
        ended_early
    }
}

/// Whether a register certainly changed: a delete may have found nothing.
fn is_certain(
    (timelines, ends): (&Timelines<'_>, &RegisterEnds<'_>),
    key: &str,
    change: &RegisterChange<'_>,
    before: Option<RegisterChange<'_>>,
) -> bool {
    let by_ns = change.acked_ns();
    let was_there = || {
        let put = before.and_then(|before| before.now).and_then(|now| now.put);
        let has_lasted = put.is_some_and(|put| !ends.may_have_ended(Some(put), by_ns));
        has_lasted && !timelines.may_have_deleted(key, change.revision, by_ns)
    };
    change.is_certain || was_there()
}
