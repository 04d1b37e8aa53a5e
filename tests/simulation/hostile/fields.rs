//! The fields that have documented limits, and their edges.

use lockkeeper::machine::{
    DATA_BYTES_MAX, KEY_BYTES_MAX, LABEL_BYTES_MAX, LIFETIME_MS_MAX, LOCK_DELAY_MS_MAX, NAME_BYTES_MAX, PERMITS_MAX,
    REASON_BYTES_MAX, REPLIES_PER_SESSION_MAX, TTL_MS_MAX, TTL_MS_MIN, TXN_BYTES_MAX, TXN_OPERATIONS_MAX,
    VALUE_BYTES_MAX, WAIT_MS_MAX, WANTS_MAX,
};

/// The names of the client's locks and keys begin with this, if they are long enough.
pub(super) const BEGINNING: &str = "hostile/";

/// A field that has a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HostileField {
    Acquire(AcquireField),
    Session(SessionField),
    Operator(OperatorField),
    Entry(EntryField),
}

/// A field of an acquire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AcquireField {
    Name,
    Data,
    Wants,
    Permits,
    Wait,
    LockDelay,
    Kept,
}

/// A field of a request for a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SessionField {
    Id,
    Ttl,
    Label,
    CloseReason,
}

/// A field of what operators and watchers ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OperatorField {
    ForceReason,
    WatchPrefix,
    DropPrefix,
    Permits,
}

/// A part of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EntryField {
    Key,
    Value,
    Lifetime,
    Compares,
    Operations,
    Bytes,
    ClaimedLock,
    OpenedTtl,
    OpenedLabel,
}

/// The documented limit of a field.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldLimit {
    pub(super) field: HostileField,
    /// Its name among the counts.
    pub(super) name: &'static str,
    /// Its name in a refusal.
    pub(super) refused_as: &'static str,
    pub(super) least: u64,
    pub(super) most: u64,
}

const fn limit(field: HostileField, name: &'static str, refused_as: &'static str, least: u64, most: u64) -> FieldLimit {
    FieldLimit { field, name, refused_as, least, most }
}

/// Refusals of a transaction name no part of it.
const TXN: &str = "txn";

/// The fields and their limits, one in each row.
static LIMITS: [FieldLimit; 24] = {
    use HostileField::{Acquire, Entry, Operator, Session};

    [
        limit(Acquire(AcquireField::Name), "a lock's name", "locks.name", 1, NAME_BYTES_MAX as u64),
        limit(Acquire(AcquireField::Data), "a lock's data", "data", 0, DATA_BYTES_MAX as u64),
        limit(Acquire(AcquireField::Wants), "locks of an acquire", "locks", 1, WANTS_MAX as u64),
        limit(Acquire(AcquireField::Permits), "permits", "locks.mode.permit.limit", 1, PERMITS_MAX as u64),
        limit(Acquire(AcquireField::Wait), "a wait", "wait_ms", 0, WAIT_MS_MAX),
        limit(Acquire(AcquireField::LockDelay), "a lock-delay", "lock_delay_ms", 0, LOCK_DELAY_MS_MAX as u64),
        limit(Acquire(AcquireField::Kept), "kept ids", "request.kept", 0, REPLIES_PER_SESSION_MAX as u64),
        limit(Session(SessionField::Id), "a session's id", "session_id", 32, 32),
        limit(Session(SessionField::Ttl), "a TTL", "ttl_ms", TTL_MS_MIN as u64, TTL_MS_MAX as u64),
        limit(Session(SessionField::Label), "a label", "label", 0, LABEL_BYTES_MAX as u64),
        limit(Session(SessionField::CloseReason), "a reason to close", "reason", 0, REASON_BYTES_MAX as u64),
        limit(Operator(OperatorField::ForceReason), "a reason to take", "reason", 1, REASON_BYTES_MAX as u64),
        limit(Operator(OperatorField::WatchPrefix), "a prefix to watch", "prefix", 0, NAME_BYTES_MAX as u64),
        limit(Operator(OperatorField::DropPrefix), "a prefix to drop", "prefix", 0, NAME_BYTES_MAX as u64),
        limit(Operator(OperatorField::Permits), "permits by an operator", "permits", 1, PERMITS_MAX as u64),
        limit(Entry(EntryField::Key), "a key", TXN, 1, KEY_BYTES_MAX as u64),
        limit(Entry(EntryField::Value), "a value", TXN, 0, VALUE_BYTES_MAX as u64),
        limit(Entry(EntryField::Lifetime), "a lifetime", TXN, 1, LIFETIME_MS_MAX),
        limit(Entry(EntryField::Compares), "compares", TXN, 0, TXN_OPERATIONS_MAX as u64),
        limit(Entry(EntryField::Operations), "operations", TXN, 0, TXN_OPERATIONS_MAX as u64),
        limit(Entry(EntryField::Bytes), "bytes of a transaction", TXN, VALUE_BYTES_MAX as u64, TXN_BYTES_MAX as u64),
        limit(Entry(EntryField::ClaimedLock), "a claimed lock's name", TXN, 1, NAME_BYTES_MAX as u64),
        limit(Entry(EntryField::OpenedTtl), "an opened TTL", TXN, TTL_MS_MIN as u64, TTL_MS_MAX as u64),
        limit(Entry(EntryField::OpenedLabel), "an opened label", TXN, 0, LABEL_BYTES_MAX as u64),
    ]
};

/// The edges of all fields, with their sizes.
pub(super) fn sendable_edges() -> impl Iterator<Item = (&'static FieldLimit, u64)> {
    LIMITS.iter().flat_map(|limit| {
        let mut sizes: Vec<_> = limit.edges().into_iter().flatten().filter(|size| limit.is_sendable(*size)).collect();
        // Where the least is the most, some of them are the same.
        sizes.dedup();
        sizes.into_iter().map(move |size| (limit, size))
    })
}

impl FieldLimit {
    pub(super) fn allows(&self, size: u64) -> bool {
        (self.least..=self.most).contains(&size)
    }

    /// Sizes at the edges, of which some may be impossible.
    fn edges(&self) -> [Option<u64>; 5] {
        let Self { least, most, .. } = *self;
        [least.checked_sub(1), Some(least), Some(least.max(most - 1)), Some(most), Some(most + 1)]
    }

    /// Whether a request can have this size, and harms nobody else.
    fn is_sendable(&self, size: u64) -> bool {
        match self.field {
            // Under a shorter prefix are the data of others.
            HostileField::Operator(OperatorField::DropPrefix) => size > BEGINNING.len() as u64,
            // The types of a transaction have no empty ones.
            HostileField::Entry(EntryField::Key | EntryField::ClaimedLock | EntryField::Lifetime) => size > 0,
            // One value cannot be larger.
            HostileField::Entry(EntryField::Bytes) => size > VALUE_BYTES_MAX as u64,
            HostileField::Entry(
                EntryField::Value
                | EntryField::Compares
                | EntryField::Operations
                | EntryField::OpenedTtl
                | EntryField::OpenedLabel,
            )
            | HostileField::Operator(
                OperatorField::ForceReason | OperatorField::WatchPrefix | OperatorField::Permits,
            )
            | HostileField::Acquire(_)
            | HostileField::Session(_) => true,
        }
    }

    pub(super) fn is_heavy(&self) -> bool {
        matches!(self.field, HostileField::Entry(EntryField::Value | EntryField::Bytes))
    }

    /// Whether its request names a session that must be there.
    pub(super) fn needs_session(&self) -> bool {
        match self.field {
            HostileField::Acquire(_)
            | HostileField::Session(SessionField::CloseReason)
            | HostileField::Operator(OperatorField::ForceReason | OperatorField::Permits)
            | HostileField::Entry(
                EntryField::Key
                | EntryField::Value
                | EntryField::Compares
                | EntryField::Bytes
                | EntryField::ClaimedLock,
            ) => true,
            HostileField::Session(SessionField::Id | SessionField::Ttl | SessionField::Label)
            | HostileField::Operator(OperatorField::WatchPrefix | OperatorField::DropPrefix)
            | HostileField::Entry(
                EntryField::Lifetime | EntryField::Operations | EntryField::OpenedTtl | EntryField::OpenedLabel,
            ) => false,
        }
    }
}
