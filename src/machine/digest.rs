//! The table as one hash: replicas that applied the same log have the same.
//!
//! FNV-1a over every field of every record: integers in little-endian order, a number before each variant, a length before each sequence.
//! Not `std::hash`: its hashers and `derive(Hash)` differ between builds and platforms, and nodes of neighbouring versions are compared.
//! Nor the bytes of the records in a snapshot: their messages belong to another crate, and another hash is another form, so that nodes of
//! this release and of the last one could not be compared while a cluster is upgraded. The hash finds bugs, not forgeries.

use super::*;

/// The form of [`Machine::hash`]. Nodes compare only hashes of one form: raise it with each change by which the same table gets another
/// hash.
pub const HASH_FORM: u32 = 1;

struct Fnv(u64);

/// A value that can be part of a digest.
trait Digest {
    fn digest(&self, into: &mut Fnv);

    /// Digests all of these, without their number.
    fn digest_each(all: &[Self], into: &mut Fnv)
    where
        Self: Sized,
    {
        all.iter().for_each(|item| item.digest(into));
    }
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

impl Digest for u8 {
    fn digest(&self, into: &mut Fnv) {
        into.bytes(&[*self]);
    }

    /// Hash all bytes at once: values have many bytes, and a simulation computes the hash again and again.
    fn digest_each(all: &[Self], into: &mut Fnv) {
        into.bytes(all);
    }
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

/// Types that are told by the text or the bytes in them.
macro_rules! digest_contents {
    ($get:ident: $($name:ty),*) => {$(
        impl Digest for $name {
            fn digest(&self, into: &mut Fnv) {
                self.$get().digest(into);
            }
        }
    )*};
}

/// Enums, each with the number and the fields of its variants. A number never changes.
macro_rules! digest_enums {
    ($($name:ident {
        $($number:literal: $variant:ident $(($($unnamed:ident),*))? $({ $($named:ident),* })?,)*
    })*) => {$(
        impl Digest for $name {
            fn digest(&self, into: &mut Fnv) {
                match self {
                    $(Self::$variant $(($($unnamed),*))? $({ $($named),* })? => {
                        into.variant($number, &[$($($unnamed,)*)? $($($named,)*)?]);
                    })*
                }
            }
        }
    )*};
}

digest_integers!(u32, u64, u128);
digest_contents!(as_str: LockName, Label, Identity, Reason);
digest_contents!(as_bytes: str, Data, Key, Value);
digest_contents!(as_millis: Ttl);
digest_contents!(get: Permits);

digest_structs! {
    Token { 0 }
    Ticket { 0 }
    Stamp { 0 }
    WallTime { 0 }
    Version { 0 }
    Revision { 0 }
    Kinship { parent, children }
    Children { made, live, changed }
    Lease { session, at_end }
    Grant { token, session, names }
    Busy { name, holder, queue_length, delay_remaining_ms }
    HolderView { token, session, label, mode, since, remaining_ms, revoked }
    Want { name, mode, data, keep_data, must_exist }
}

digest_enums! {
    AtLeaseEnd { 0: Delete, 1: Keep, }
    Mode { 0: Exclusive, 1: Shared, 2: Permit(permits), }
    Wait { 0: Never, 1: Millis(ms), 2: Forever, }
    Target { 0: Grant(token), 1: Acquire(id), }
    SessionEnd { 0: Closed, 1: Expired, 2: Unknown, }
    Released { 0: Grant, 1: Wait, 2: Nothing, }
    RememberedRequest { 0: Acquire(names), 1: Release(target), 2: Update(token, name), 3: Abandoned, }
    WaitEnd {
        0: Granted(grant),
        1: TimedOut(busy),
        2: Cancelled,
        3: Abandoned,
        4: SessionEnded(end),
        5: Removed,
    }
    Refusal {
        0: SessionEnded(end),
        1: SessionExists,
        2: NotHeld,
        3: ModeMismatch { name, in_use },
        4: Abandoned,
        5: RequestStale { lowest },
        6: RequestReused,
        7: Limit(limit),
        8: LockUnknown { name },
        9: Revoked { token, reason },
        10: NotSemaphore { name },
        11: RevisionFuture { present },
        12: Closed { remaining_ms },
        13: SessionMoved { number },
        14: TxnFailed { index, reason },
    }
    TxnFailureReason {
        0: NoParent,
        1: ParentEnds,
        2: ChildExists,
        3: ChildrenLeft,
        4: ParentCannotEnd,
        5: PutTwice,
    }
    Limit {
        0: Sessions,
        1: Waiters,
        2: Locks,
        3: RepliesPerSession,
        4: TakenPerSession,
        5: WaitsPerSession,
        6: GrantsPerSession,
        7: TableBytes,
        8: SessionBytes,
        9: Entries,
        10: TxnWrites,
        11: TxnBytes,
        12: TxnReads,
        13: TemporaryEntries,
    }
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
        T::digest_each(self, into);
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

impl Digest for OpenIds {
    fn digest(&self, into: &mut Fnv) {
        self.lowest().digest(into);
        self.kept().digest(into);
    }
}

impl Digest for Entry {
    fn digest(&self, into: &mut Fnv) {
        let Self { created, modified, version, lease, until, claim, is_expired, is_revoked, is_temporary, kin, value } =
            self;
        let fields: [&dyn Digest; 8] = [created, modified, version, lease, claim, is_expired, is_revoked, value];
        fields.iter().for_each(|field| field.digest(into));

        // Only when set, so that the digest equals that of versions without the field.
        if until.is_some() {
            into.variant(0, &[until]);
        }
        if kin.is_some() {
            into.variant(1, &[kin]);
        }
        if *is_temporary {
            into.variant(2, &[is_temporary]);
        }
    }
}

impl Digest for Claim {
    fn digest(&self, into: &mut Fnv) {
        let Self { lock, token, since, is_held, label } = self;
        let fields: [&dyn Digest; 4] = [lock, token, since, is_held];
        fields.iter().for_each(|field| field.digest(into));
        // As above.
        if !label.as_str().is_empty() {
            into.variant(0, &[label]);
        }
    }
}

impl Digest for Acquire {
    fn digest(&self, into: &mut Fnv) {
        self.wants().digest(into);
        self.wait.digest(into);
        self.lock_delay_ms.digest(into);
    }
}

/// Meant for replies that a session remembers; [`Machine::check`] ensures that no other kind is remembered.
impl Digest for Reply {
    fn digest(&self, into: &mut Fnv) {
        match self.to_session() {
            Some(SessionReply::Queued(ticket)) => into.variant(0, &[&ticket]),
            Some(SessionReply::Acquired(end)) => into.variant(1, &[end]),
            Some(SessionReply::Busy(busy)) => into.variant(2, &[busy]),
            Some(SessionReply::Released(released)) => into.variant(3, &[&released]),
            Some(SessionReply::Updated) => into.variant(4, &[]),
            Some(SessionReply::Refused(refusal)) => into.variant(5, &[refusal]),
            None => into.variant(6, &[]),
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
            // The address is not hashed: versions without the field have the same hash, and nothing is decided by it.
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
                attached,
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
                if *attached > 0 {
                    into.variant(4, &[attached]);
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
