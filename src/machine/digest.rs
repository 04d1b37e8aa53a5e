//! The table as one hash: replicas that applied the same log have the same.
//!
//! FNV-1a over every field of every record: integers in little-endian order, a number before each variant, a length before each sequence.
//! Not `std::hash`: its hashers and `derive(Hash)` differ between builds and platforms, and nodes of neighbouring versions are compared.
//! The hash finds bugs, not forgeries.

use super::*;

/// The form of [`Machine::hash`]. Nodes compare only hashes of one form: raise it with each change by which the same table gets another
/// hash.
pub const HASH_FORM: u32 = 1;

struct Fnv(u64);

/// A value that can be part of a digest.
trait Digest {
    fn digest(&self, into: &mut Fnv);
}

impl Machine {
    /// A hash of all [records](Machine::records), the same in every build and on every platform.
    pub fn hash(&self) -> u64 {
        let mut fnv = Fnv(0xcbf2_9ce4_8422_2325);
        for record in self.records() {
            record.digest(&mut fnv);
        }
        fnv.0
    }
}

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// An enum's variant, as its number and its fields.
    fn variant(&mut self, number: u8, fields: &[&dyn Digest]) {
        self.bytes(&[number]);
        fields.iter().for_each(|field| field.digest(self));
    }
}

macro_rules! digest_integers {
    ($($integer:ty),*) => {$(
        impl Digest for $integer {
            fn digest(&self, into: &mut Fnv) {
                into.bytes(&self.to_le_bytes());
            }
        }
    )*};
}

macro_rules! digest_structs {
    ($($name:ident { $($field:tt),* })*) => {$(
        impl Digest for $name {
            fn digest(&self, into: &mut Fnv) {
                $(self.$field.digest(into);)*
            }
        }
    )*};
}

digest_integers!(u8, u32, u64, u128);

digest_structs! {
    Token { 0 }
    Ticket { 0 }
    Stamp { 0 }
    WallTime { 0 }
    Version { 0 }
    Revision { 0 }
    Lease { session, at_end }
    Claim { lock, token, since, is_held }
    Entry { created, modified, version, lease, claim, is_expired, is_revoked, value }
    Grant { token, session, names }
    Busy { name, holder, queue_length, delay_remaining_ms }
    HolderView { token, session, label, mode, since, remaining_ms, revoked }
    Want { name, mode, data, keep_data, must_exist }
}

impl Digest for SessionId {
    fn digest(&self, into: &mut Fnv) {
        // Copied out: the field may be unaligned, and then cannot be borrowed.
        let Self(id) = *self;
        id.digest(into);
    }
}

impl Digest for bool {
    fn digest(&self, into: &mut Fnv) {
        into.bytes(&[u8::from(*self)]);
    }
}

impl<T: Digest> Digest for Option<T> {
    fn digest(&self, into: &mut Fnv) {
        match self {
            None => into.variant(0, &[]),
            Some(value) => into.variant(1, &[value]),
        }
    }
}

impl<T: Digest> Digest for [T] {
    fn digest(&self, into: &mut Fnv) {
        (self.len() as u64).digest(into);
        self.iter().for_each(|item| item.digest(into));
    }
}

impl<T: Digest + ?Sized> Digest for Arc<T> {
    fn digest(&self, into: &mut Fnv) {
        (**self).digest(into);
    }
}

impl<A: Digest, B: Digest> Digest for (A, B) {
    fn digest(&self, into: &mut Fnv) {
        self.0.digest(into);
        self.1.digest(into);
    }
}

impl Digest for str {
    fn digest(&self, into: &mut Fnv) {
        self.as_bytes().digest(into);
    }
}

impl Digest for LockName {
    fn digest(&self, into: &mut Fnv) {
        self.as_str().digest(into);
    }
}

impl Digest for Label {
    fn digest(&self, into: &mut Fnv) {
        self.as_str().digest(into);
    }
}

impl Digest for Identity {
    fn digest(&self, into: &mut Fnv) {
        self.as_str().digest(into);
    }
}

impl Digest for Reason {
    fn digest(&self, into: &mut Fnv) {
        self.as_str().digest(into);
    }
}

impl Digest for Data {
    fn digest(&self, into: &mut Fnv) {
        self.as_bytes().digest(into);
    }
}

impl Digest for Key {
    fn digest(&self, into: &mut Fnv) {
        self.as_bytes().digest(into);
    }
}

impl Digest for Value {
    fn digest(&self, into: &mut Fnv) {
        self.as_bytes().digest(into);
    }
}

impl Digest for AtLeaseEnd {
    fn digest(&self, into: &mut Fnv) {
        into.bytes(&[match self {
            Self::Delete => 0,
            Self::Keep => 1,
        }]);
    }
}

impl Digest for Ttl {
    fn digest(&self, into: &mut Fnv) {
        self.as_millis().digest(into);
    }
}

impl Digest for Permits {
    fn digest(&self, into: &mut Fnv) {
        self.get().digest(into);
    }
}

impl Digest for OpenIds {
    fn digest(&self, into: &mut Fnv) {
        self.lowest().digest(into);
        self.kept().digest(into);
    }
}

impl Digest for Acquire {
    fn digest(&self, into: &mut Fnv) {
        self.wants().digest(into);
        self.wait.digest(into);
        self.lock_delay_ms.digest(into);
    }
}

impl Digest for Mode {
    fn digest(&self, into: &mut Fnv) {
        match self {
            Self::Exclusive => into.variant(0, &[]),
            Self::Shared => into.variant(1, &[]),
            Self::Permit(permits) => into.variant(2, &[permits]),
        }
    }
}

impl Digest for Wait {
    fn digest(&self, into: &mut Fnv) {
        match self {
            Self::Never => into.variant(0, &[]),
            Self::Millis(ms) => into.variant(1, &[ms]),
            Self::Forever => into.variant(2, &[]),
        }
    }
}

impl Digest for Target {
    fn digest(&self, into: &mut Fnv) {
        match self {
            Self::Grant(token) => into.variant(0, &[token]),
            Self::Acquire(id) => into.variant(1, &[id]),
        }
    }
}

impl Digest for SessionEnd {
    fn digest(&self, into: &mut Fnv) {
        into.bytes(&[match self {
            Self::Closed => 0,
            Self::Expired => 1,
            Self::Unknown => 2,
        }]);
    }
}

impl Digest for Released {
    fn digest(&self, into: &mut Fnv) {
        into.bytes(&[match self {
            Self::Grant => 0,
            Self::Wait => 1,
            Self::Nothing => 2,
        }]);
    }
}

impl Digest for Limit {
    fn digest(&self, into: &mut Fnv) {
        into.bytes(&[match self {
            Self::Sessions => 0,
            Self::Waiters => 1,
            Self::Locks => 2,
            Self::RepliesPerSession => 3,
            Self::TakenPerSession => 4,
            Self::WaitsPerSession => 5,
            Self::GrantsPerSession => 6,
            Self::TableBytes => 7,
            Self::SessionBytes => 8,
            Self::Entries => 9,
            Self::TxnWrites => 10,
            Self::TxnBytes => 11,
            Self::TxnReads => 12,
            Self::TemporaryEntries => 13,
        }]);
    }
}

impl Digest for Refusal {
    fn digest(&self, into: &mut Fnv) {
        match self {
            Self::SessionEnded(end) => into.variant(0, &[end]),
            Self::SessionExists => into.variant(1, &[]),
            Self::NotHeld => into.variant(2, &[]),
            Self::ModeMismatch { name, in_use } => into.variant(3, &[name, in_use]),
            Self::Abandoned => into.variant(4, &[]),
            Self::RequestStale { lowest } => into.variant(5, &[lowest]),
            Self::RequestReused => into.variant(6, &[]),
            Self::Limit(limit) => into.variant(7, &[limit]),
            Self::LockUnknown { name } => into.variant(8, &[name]),
            Self::Revoked { token, reason } => into.variant(9, &[token, reason]),
            Self::NotSemaphore { name } => into.variant(10, &[name]),
            Self::RevisionFuture { present } => into.variant(11, &[present]),
            Self::Closed { remaining_ms } => into.variant(12, &[remaining_ms]),
        }
    }
}

impl Digest for WaitEnd {
    fn digest(&self, into: &mut Fnv) {
        match self {
            Self::Granted(grant) => into.variant(0, &[grant]),
            Self::TimedOut(busy) => into.variant(1, &[busy]),
            Self::Cancelled => into.variant(2, &[]),
            Self::Abandoned => into.variant(3, &[]),
            Self::SessionEnded(end) => into.variant(4, &[end]),
            Self::Removed => into.variant(5, &[]),
        }
    }
}

impl Digest for Asked {
    fn digest(&self, into: &mut Fnv) {
        match self {
            Self::Acquire(names) => into.variant(0, &[names]),
            Self::Release(target) => into.variant(1, &[target]),
            Self::Update(token, name) => into.variant(2, &[token, name]),
            Self::Abandoned => into.variant(3, &[]),
        }
    }
}

/// Meant for replies that a session remembers; [`Machine::check`] ensures that no other kind is remembered.
impl Digest for Reply {
    fn digest(&self, into: &mut Fnv) {
        match self {
            Self::Queued(ticket) => into.variant(0, &[ticket]),
            Self::Acquired(end) => into.variant(1, &[end]),
            Self::Busy(busy) => into.variant(2, &[busy]),
            Self::Released(released) => into.variant(3, &[released]),
            Self::Updated => into.variant(4, &[]),
            Self::Refused(refusal) => into.variant(5, &[refusal]),
            Self::Opened(_)
            | Self::Renewed(_)
            | Self::Closed
            | Self::WaitCancelled(_)
            | Self::Forced { .. }
            | Self::WaiterRemoved(_)
            | Self::DelayLifted(_)
            | Self::DataDropped { .. }
            | Self::Resized { .. }
            | Self::Committed(_)
            | Self::Compacted(_)
            | Self::VersionRaised(_)
            | Self::Probed
            | Self::Noted
            | Self::Ticked => into.variant(6, &[]),
        }
    }
}

impl Digest for Record {
    fn digest(&self, into: &mut Fnv) {
        match self {
            Self::Clock { now, last_token, last_ticket, is_behind } => {
                into.variant(0, &[now, last_token, last_ticket]);
                // Only when set, so that the digest equals that of versions without the field.
                if *is_behind {
                    into.variant(0, &[is_behind]);
                }
            }
            Self::Ended { session, end } => into.variant(1, &[session, end]),
            // Without the address: versions without the field have the same hash, and nothing is decided by it.
            Self::Session {
                session,
                label,
                ttl,
                deadline,
                opened,
                address: _,
                open,
                owner,
                is_of_entries,
                is_temporary,
            } => {
                into.variant(2, &[session, label, ttl, deadline, opened, open]);
                // Only when set, so that the digest equals that of versions without the field.
                if owner.is_some() {
                    into.variant(2, &[owner]);
                }
                if *is_of_entries {
                    into.variant(2, &[is_of_entries]);
                }
                if *is_temporary {
                    into.variant(3, &[is_temporary]);
                }
            }
            Self::Lock { name, data, keep_data, closed_until } => {
                into.variant(3, &[name, data, keep_data, closed_until]);
            }
            Self::Grant { token, session, locks, lock_delay_ms, since, revoked, revoked_by } => {
                into.variant(4, &[token, session]);
                locks.digest(into);
                into.variant(4, &[lock_delay_ms, since, revoked]);
                // As above.
                if revoked_by.is_some() {
                    into.variant(4, &[revoked_by]);
                }
            }
            Self::Wait { ticket, session, request, acquire, deadline, since, repeats } => {
                into.variant(5, &[ticket, session, request, acquire, deadline, since]);
                // Only when not 0, so that the digest equals that of versions without the field.
                if *repeats > 0 {
                    into.variant(5, &[repeats]);
                }
            }
            Self::Reply { session, request, asked, reply } => into.variant(6, &[session, request, asked, reply]),
            Self::Taken { token, session, reason } => into.variant(7, &[token, session, reason]),
            Self::Work(Work::EndSession { session, end, at }) => into.variant(8, &[session, end, at]),
            Self::Work(Work::HandOn { name }) => into.variant(9, &[name]),
            Self::Resized { name, permits } => into.variant(10, &[name, permits]),
            Self::Version { version } => into.variant(11, &[version]),
            Self::Entry { key, entry } => into.variant(12, &[key, entry]),
            Self::Compacted { revision } => into.variant(13, &[revision]),
            Self::EntryEvent { revision, key, before } => into.variant(14, &[revision, key, before]),
            Self::Closed { until } => into.variant(15, &[until]),
        }
    }
}
