//! What the nodes of a run have counted, from their own metrics: requests that were answered, and limits that were reached.

use std::collections::BTreeMap;

use lockkeeper::{machine::Limit, planted::NodeLimit};

use crate::keyspace::words::words;

/// Before the words of the keyspace's requests, the requests that were answered, and the limits that refused one, among the counts of a
/// run.
pub(crate) const WORD: &str = "word ";
pub(crate) const ANSWERED: &str = "answered ";
pub(crate) const LIMIT: &str = "limit ";
/// Before the limits of one identity, among those.
const IDENTITY: &str = "identity_";
/// Before what is a maximum, and no sum.
pub(crate) const LONGEST: &str = "longest ";

words! { limit_name, LIMITS, Limit:
    Limit::Sessions => "sessions",
    Limit::Waiters => "waiters",
    Limit::Locks => "locks",
    Limit::WaitsPerSession => "waits_per_session",
    Limit::RepliesPerSession => "replies_per_session",
    Limit::TakenPerSession => "taken_per_session",
    Limit::GrantsPerSession => "grants_per_session",
    Limit::TableBytes => "table_bytes",
    Limit::SessionBytes => "session_bytes",
    Limit::Entries => "entries",
    Limit::TemporaryEntries => "temporary_entries",
    Limit::TxnWrites => "txn_writes",
    Limit::TxnReads => "txn_reads",
    Limit::TxnBytes => "txn_bytes",
}

/// The limits that runs must reach, by their names in the metrics, and the limits of the nodes for what is under way.
pub(crate) fn limits() -> impl Iterator<Item = &'static str> {
    LIMITS.iter().copied().chain(NodeLimit::ALL.map(NodeLimit::name))
}

/// How often nodes of this process have reached their limits for what is under way.
pub(crate) fn node_limits() -> impl Iterator<Item = (String, u64)> {
    NodeLimit::ALL.into_iter().map(|limit| (format!("{LIMIT}{}", limit.name()), limit.noted()))
}

/// The counts of all nodes.
#[derive(Default, Debug)]
pub(crate) struct Tally(BTreeMap<String, u64>);

impl Tally {
    /// Adds the metrics of a node.
    pub(crate) fn add(&mut self, metrics: &str) {
        for line in metrics.lines() {
            let Some((name, count)) = line.rsplit_once(' ') else { continue };
            let Ok(count) = count.parse::<u64>() else { continue };
            let what = match name.split_once('{') {
                Some(("lockkeeper_calls_total", labels)) if labels.contains("outcome=\"ok\"") => {
                    label(labels, "call").map(|call| format!("{ANSWERED}{call}"))
                }
                Some(("lockkeeper_limits_reached_total", labels)) => {
                    label(labels, "limit").map(|limit| format!("{LIMIT}{limit}"))
                }
                _ => None,
            };
            if let Some(what) = what {
                *self.0.entry(what).or_default() += count;
            }
        }
    }

    /// How often a limit was reached that is not one of a single identity.
    pub(crate) fn limits(&self) -> u64 {
        let limits = self.0.iter().filter_map(|(what, count)| Some((what.strip_prefix(LIMIT)?, count)));
        limits.filter(|(limit, _)| !limit.starts_with(IDENTITY)).map(|(_, count)| count).sum()
    }

    /// The counts by their names.
    pub(crate) fn counts(self) -> impl Iterator<Item = (String, u64)> {
        self.0.into_iter()
    }
}

/// The value of a label.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    rest.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_limits_are_counted() {
        let mut tally = Tally::default();
        let text = "lockkeeper_calls_total{call=\"txn\",outcome=\"ok\"} 3\n\
                    lockkeeper_calls_total{call=\"txn\",outcome=\"LIMIT_REACHED\"} 4\n\
                    lockkeeper_limits_reached_total{limit=\"entries\"} 5\n# EOF\n";
        tally.add(text);
        tally.add(text);
        assert_eq!((tally.limits(), limit_name(&Limit::Entries)), (10, "entries"));
        let counts: Vec<_> = tally.counts().collect();
        assert_eq!(counts, [("answered txn".to_owned(), 6), ("limit entries".to_owned(), 10)]);
    }
}
