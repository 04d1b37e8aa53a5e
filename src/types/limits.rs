//! Every limit of the table, in one place.
//!
//! They are part of the log's meaning: two replicas with different limits would compute different tables. To change one of the constants
//! that are read while commands are applied, give the log a new format first. Those in [`Limits`] come with each batch of the log.
//!
//! Limits apply to commands that ask for more. A release is never refused by a limit.

/// Bytes in a lock's name.
pub const NAME_BYTES_MAX: usize = 512;
/// Bytes of data on a lock.
pub const DATA_BYTES_MAX: usize = 16 * 1024;
/// Bytes in a session's label.
pub const LABEL_BYTES_MAX: usize = 256;
/// Bytes in an identity.
pub const IDENTITY_BYTES_MAX: usize = 64;
/// Bytes in the reason of a forced release.
pub const REASON_BYTES_MAX: usize = 512;
/// Locks in one acquire.
pub const WANTS_MAX: usize = 64;
/// The size of a semaphore.
pub const PERMITS_MAX: u32 = 1_000_000;
/// The shortest TTL, milliseconds.
pub const TTL_MS_MIN: u32 = 100;
/// The longest TTL, milliseconds: a day.
pub const TTL_MS_MAX: u32 = 24 * 60 * 60 * 1000;
/// The longest wait with a time limit, milliseconds: a week.
pub const WAIT_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1000;
/// The longest lock-delay, milliseconds: an hour.
pub const LOCK_DELAY_MS_MAX: u32 = 60 * 60 * 1000;
/// Sessions alive at one time.
pub const SESSIONS_MAX: usize = 1_000_000;
/// Acquires that wait at one time, in the whole table.
pub const WAITERS_MAX: usize = 1_000_000;
/// Locks at one time: held, awaited, delayed or with data.
pub const LOCKS_MAX: usize = 10_000_000;
/// Acquires of one session that wait at one time.
pub const WAITS_PER_SESSION_MAX: usize = 1024;
/// Replies that a session remembers for retries, waits included, before its acquires are refused; also the number of request ids that a
/// client may keep below the lowest.
pub const REPLIES_PER_SESSION_MAX: usize = 1024;
/// Replies to releases and updates, in addition to those. A session with [`REPLIES_PER_SESSION_MAX`] acquires under way can still
/// release.
pub const RELEASE_REPLIES_PER_SESSION_MAX: usize = 1024;
/// Grants that were taken from a session by force and that it has not released, before its acquires are refused. It may lose more: all
/// that it holds at the time.
pub const TAKEN_PER_SESSION_MAX: usize = 1024;
/// Revoked grants in one reply to a renewal.
pub const REVOCATIONS_PER_REPLY_MAX: usize = 1024;
/// Ended sessions whose end is remembered, so that a late request is told how its session ended.
pub const ENDED_SESSIONS_MAX: usize = 4096;

/// Bytes in a key of the keyspace.
pub const KEY_BYTES_MAX: usize = 2 * 1024;
/// Bytes in the value of an entry of the keyspace.
pub const VALUE_BYTES_MAX: usize = 400 * 1024;
/// Entries of the keyspace at one time.
pub const ENTRIES_MAX: usize = 10_000_000;
/// Maximum lifetime of an entry with a deadline of its own, milliseconds: 2^53 - 1, which readers of JSON keep exactly.
pub const LIFETIME_MS_MAX: u64 = (1 << 53) - 1;
/// Temporary entries of the keyspace at one time: what adapters remember for a time. They may have a quarter of [`TABLE_BYTES_MAX`]
/// together, in addition to it.
pub const TEMPORARY_ENTRIES_MAX: usize = 250_000;
/// Events in the history of the keyspace. Beyond, the earliest revisions are forgotten.
pub const EVENTS_MAX: usize = 100_000;
/// Bytes that the history of the keyspace keeps in memory in addition to its entries, by the table's own count. See `bytes.rs`.
pub const EVENT_BYTES_MAX: usize = 64 << 20;
/// Compares of one transaction, and operations of each of its two branches.
pub const TXN_OPERATIONS_MAX: usize = 1024;
/// The same in clusters whose members do not all know children of keys.
pub const TXN_OPERATIONS_BEFORE_CHILDREN_MAX: usize = 256;
/// Entries that one transaction writes or deletes, and entries in the ranges that it deletes.
pub const TXN_WRITES_MAX: usize = 1024;
/// Entries of the ranges that one transaction compares and shows: they are visited while the table is locked.
pub const TXN_READS_MAX: usize = 16 * 1024;
/// Bytes of the keys and values of one transaction, and of those that its reply shows. It is one entry of the log and one message between
/// nodes, whose limit is higher.
pub const TXN_BYTES_MAX: usize = 3 * 512 * 1024;

/// Units of work that one part of a batch may do: see `backlog.rs`.
pub const WORK_PER_BATCH: usize = 500;
/// Grants that a session holds plus its waiting acquires.
pub const GRANTS_PER_SESSION_MAX: usize = 100_000;
/// Bytes of the whole table, by its own count. See `bytes.rs`.
pub const TABLE_BYTES_MAX: usize = 1 << 30;
/// Bytes of one session: its label, its grants, waits and replies, with names and data.
pub const SESSION_BYTES_MAX: usize = 1 << 26;

/// Limits that the leader writes into each batch of the log, so that all replicas apply it with the same ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Units of work that one part of a batch may do: a unit is a lock that is granted, taken or released, or a session that ends. The
    /// rest continues in later batches.
    pub work: usize,
    /// Grants that a session holds plus its waiting acquires.
    pub grants_per_session: usize,
    /// Bytes of the whole table.
    pub table_bytes: usize,
    /// Bytes of one session.
    pub session_bytes: usize,
}

impl Limits {
    /// No limit. This is the meaning of a batch that was written by a version without limits.
    pub const NONE: Self =
        Self { work: usize::MAX, grants_per_session: usize::MAX, table_bytes: usize::MAX, session_bytes: usize::MAX };
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            work: WORK_PER_BATCH,
            grants_per_session: GRANTS_PER_SESSION_MAX,
            table_bytes: TABLE_BYTES_MAX,
            session_bytes: SESSION_BYTES_MAX,
        }
    }
}
