//! The anomalies of transactions, by their usual names.

use std::fmt;

use crate::verdict::Evidence;

/// The kinds of anomaly, as Adya and Elle name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AnomalyKind {
    /// Writes of two transactions contradict each other's order.
    G0,
    /// A read saw what had no effect.
    G1a,
    /// A read saw a value that its transaction replaced itself.
    G1b,
    /// Transactions depend on each other in a circle, by writes and what was read of them.
    G1c,
    /// A circle in which one transaction missed a write.
    GSingle,
    /// A transaction replaced a value, and missed that another had replaced it.
    LostUpdate,
    /// A circle in which several transactions missed writes.
    G2,
    /// A read missed what had been acknowledged before it began.
    StaleRead,
    /// Revisions, or a circle of dependencies, contradict the order in time.
    Realtime,
    /// A read within a transaction missed an earlier step of it.
    Internal,
    /// A read saw what nobody wrote.
    GarbageRead,
    /// A register has two states at one revision.
    DirtyUpdate,
    /// Steps ran although a condition did not hold, or did not run although all held.
    WrongBranch,
}

impl AnomalyKind {
    fn name(self) -> &'static str {
        match self {
            Self::G0 => "G0 (dirty write)",
            Self::G1a => "G1a (aborted read)",
            Self::G1b => "G1b (intermediate read)",
            Self::G1c => "G1c (circular information flow)",
            Self::GSingle => "G-single (read skew)",
            Self::LostUpdate => "G-single (lost update)",
            Self::G2 => "G2 (anti-dependency cycle)",
            Self::StaleRead => "stale read",
            Self::Realtime => "order against real time",
            Self::Internal => "internal",
            Self::GarbageRead => "garbage read",
            Self::DirtyUpdate => "dirty update",
            Self::WrongBranch => "wrong branch",
        }
    }
}

/// An anomaly with its evidence.
pub(super) struct TxnAnomaly {
    kind: AnomalyKind,
    says: String,
    lines: Vec<usize>,
}

impl TxnAnomaly {
    pub(super) fn new(kind: AnomalyKind, says: String, lines: impl IntoIterator<Item = usize>) -> Self {
        Self { kind, says, lines: lines.into_iter().collect() }
    }
}

impl fmt::Display for TxnAnomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.says)
    }
}

impl Evidence for TxnAnomaly {
    fn lines(&self) -> Vec<usize> {
        self.lines.clone()
    }
}
