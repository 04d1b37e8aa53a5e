//! A grammar of transactions and ranges: everything that the keyspace's types can say, over few keys, so that requests meet.
//!
//! Values are also drawn at their limits and just beyond them. What is beyond must be refused, and never reach the log.

use std::collections::BTreeMap;

use lockkeeper::machine::{
    AtLeaseEnd, Attached, Bounds, Compare, EntryDeadline, Expire, KEY_BYTES_MAX, Key, KeyRange, LABEL_BYTES_MAX,
    LIFETIME_MS_MAX, Label, Lease, Lifetime, LockName, NewSession, Operand, Put, PutChild, PutClaim, PutLease,
    Relation, Revision, Select, SessionId, Shows, SortBy, Stamp, TXN_OPERATIONS_MAX, Ttl, Txn, TxnOperation,
    VALUE_BYTES_MAX, Value,
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

use crate::clients::percent;

/// The keys of most requests.
const KEYS: u32 = 12;
/// The locks that entries claim.
const CLAIMED: u32 = 3;
/// Of this number of texts, one is as long as its limit, and one is longer.
const TEXTS_PER_LONGEST: u32 = 400;
/// Of this number of transactions, one has as many operations as it may, and one has more.
const TXNS_PER_LARGEST: u32 = 150;
/// Sessions and revisions that are remembered, each.
const KNOWN_MAX: usize = 6;

/// A speaker: what it says depends on its seed, and on what it has heard.
pub(crate) struct Grammar {
    random: StdRng,
    /// Sessions that were open once.
    sessions: Vec<SessionId>,
    /// Revisions that were seen.
    revisions: Vec<Revision>,
    /// The last revision that was seen of each key.
    modified: BTreeMap<Key, Revision>,
    /// Attachments of sessions that were seen, old ones among them.
    attachments: Vec<Attached>,
    /// The cluster time that was seen last.
    now: Stamp,
    values: u64,
}

impl Grammar {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            sessions: Vec::new(),
            revisions: Vec::new(),
            modified: BTreeMap::new(),
            attachments: Vec::new(),
            now: Stamp::default(),
            values: 0,
        }
    }

    pub(crate) fn random(&mut self) -> &mut StdRng {
        &mut self.random
    }

    /// True with this probability in percent.
    pub(crate) fn percent(&mut self, of_hundred: u32) -> bool {
        percent(&mut self.random, of_hundred)
    }

    pub(crate) fn hear_session(&mut self, session: SessionId) {
        remember(&mut self.sessions, session, &mut self.random);
    }

    pub(crate) fn hear_attachment(&mut self, attached: Attached) {
        remember(&mut self.attachments, attached, &mut self.random);
    }

    /// An attachment that was seen, or of a session that nobody attached.
    fn attached(&mut self) -> Attached {
        let known = self.attachments.choose(&mut self.random).copied();
        known.filter(|_| self.percent(80)).unwrap_or_else(|| Attached { session: self.session(), number: 0 })
    }

    pub(crate) fn hear_revision(&mut self, revision: Revision) {
        if !self.revisions.contains(&revision) {
            remember(&mut self.revisions, revision, &mut self.random);
        }
    }

    pub(crate) fn hear_now(&mut self, now: Stamp) {
        self.now = self.now.max(now);
    }

    /// A deadline that is soon, or never, or over.
    fn lifetime(&mut self) -> Lifetime {
        let ms = *[1, 20, 300, 2_000, LIFETIME_MS_MAX].choose(&mut self.random).expect("it is not empty");
        Lifetime::from_millis(ms).expect("it is in the bounds")
    }

    fn deadline(&mut self) -> EntryDeadline {
        let lifetime = self.lifetime();
        if self.percent(60) {
            EntryDeadline::After(lifetime)
        } else {
            let ms = lifetime.as_millis();
            let earlier = self.random.random_range(0..100);
            EntryDeadline::At(Stamp(self.now.0.saturating_sub(earlier).saturating_add(ms.min(5_000))))
        }
    }

    pub(crate) fn hear_entry(&mut self, key: &Key, modified: Option<Revision>) {
        match modified {
            Some(modified) => drop(self.modified.insert(key.clone(), modified)),
            None => drop(self.modified.remove(key)),
        }
    }

    /// A session that is open, or was, or never existed.
    pub(crate) fn session(&mut self) -> SessionId {
        let known = self.sessions.choose(&mut self.random).copied();
        known.filter(|_| self.percent(95)).unwrap_or_else(|| SessionId(self.random.random()))
    }

    /// A revision that was seen, or is near to one, or is in the future.
    pub(crate) fn revision(&mut self) -> Revision {
        let known = self.revisions.choose(&mut self.random).copied().unwrap_or_default();
        let moved = match self.random.random_range(0..6) {
            0 => known.0.saturating_sub(self.random.random_range(0..40)),
            1 => known.0 + self.random.random_range(1..40),
            2 => self.random.random_range(0..4),
            _ => known.0,
        };
        Revision(moved)
    }

    pub(crate) fn key(&mut self) -> Key {
        let short = format!("g/{:02}", self.random.random_range(0..KEYS));
        let length = self.length(short.len(), KEY_BYTES_MAX);
        let mut key = short.into_bytes();
        key.resize(length, b'~');
        Key::from_log(&key).expect("it is not empty")
    }

    /// A length: `usual` mostly, at times the greatest that is allowed, or one more.
    fn length(&mut self, usual: usize, most: usize) -> usize {
        match self.random.random_range(0..TEXTS_PER_LONGEST) {
            0 => most,
            1 => most + 1,
            _ => usual,
        }
    }

    pub(crate) fn range(&mut self) -> KeyRange {
        let end = |it: &mut Self| if it.percent(85) { Some(it.key()) } else { None };
        let (from, to) = (end(self), end(self));
        let is_reversed = matches!((&from, &to), (Some(from), Some(to)) if from > to);
        // Most ranges are not empty.
        if is_reversed && self.percent(80) { KeyRange { from: to, to: from } } else { KeyRange { from, to } }
    }

    /// A range of its own keys alone: those of other clients are not deleted.
    fn own_range(&mut self) -> KeyRange {
        let range = self.range();
        KeyRange { from: range.from.or_else(|| Some(self.key())), to: range.to.or_else(|| Some(self.key())) }
    }

    /// A value that no other one equals. One that stays may not fill the table.
    pub(crate) fn value(&mut self, stays: bool) -> Value {
        self.values += 1;
        let mut value = format!("{:x}.{}", self.random.random::<u32>(), self.values).into_bytes();
        let usual = if self.percent(10) { self.random.random_range(0..3_000) } else { value.len() };
        // The longest ones cost much time.
        let length = if !stays && self.percent(30) { self.length(usual, VALUE_BYTES_MAX) } else { usual };
        value.resize(length, b'.');
        Value::from_log(&value)
    }

    fn ttl(&mut self) -> Ttl {
        let ms = *[100, 300, 1_000, 2_500].choose(&mut self.random).expect("it is not empty");
        Ttl::from_millis(ms).expect("it is in the bounds")
    }

    fn label(&mut self) -> Label {
        let length = if self.percent(50) { 0 } else { self.random.random_range(1..=LABEL_BYTES_MAX) };
        Label::new(&"l".repeat(length)).expect("it is in the bounds")
    }

    fn at_end(&mut self) -> AtLeaseEnd {
        if self.percent(60) { AtLeaseEnd::Delete } else { AtLeaseEnd::Keep }
    }

    fn operand(&mut self, key: &Key) -> Operand {
        let modified = self.modified.get(key).copied().unwrap_or_default();
        match self.random.random_range(0..10) {
            0 => Operand::Created(if self.percent(50) { modified } else { self.revision() }),
            1 | 2 => Operand::Version(self.random.random_range(0..4)),
            3 => Operand::Value(self.value(false)),
            4 => Operand::Lease(None),
            5 => Operand::Lease(Some(self.session())),
            _ => Operand::Modified(if self.percent(80) { modified } else { self.revision() }),
        }
    }

    fn relation(&mut self) -> Relation {
        let all = [Relation::Equal, Relation::Equal, Relation::NotEqual, Relation::Less, Relation::Greater];
        *all.choose(&mut self.random).expect("it is not empty")
    }

    pub(crate) fn compare(&mut self) -> Compare {
        let key = self.key();
        let up_to = if self.percent(20) { Some(self.key()) } else { None };
        Compare { operand: self.operand(&key), key, up_to, relation: self.relation() }
    }

    fn bounds(&mut self) -> Bounds {
        let end = |it: &mut Self| if it.percent(15) { Some(it.revision()) } else { None };
        Bounds { min: end(self), max: end(self) }
    }

    pub(crate) fn select(&mut self) -> Select {
        let by = [SortBy::Key, SortBy::Created, SortBy::Modified, SortBy::Version, SortBy::Value];
        let shows = [Shows::Entries, Shows::Entries, Shows::Keys, Shows::Count];
        Select {
            range: self.range(),
            created: self.bounds(),
            modified: self.bounds(),
            by: *by.choose(&mut self.random).expect("it is not empty"),
            is_descending: self.percent(40),
            limit: if self.percent(50) { 0 } else { self.random.random_range(1..5) },
            shows: *shows.choose(&mut self.random).expect("it is not empty"),
        }
    }

    /// A put without a claim.
    pub(crate) fn put(&mut self) -> Put {
        let key = self.key();
        let lease = match self.random.random_range(0..10) {
            0..4 => PutLease::None,
            4..7 => PutLease::Given(Lease { session: self.session(), at_end: self.at_end() }),
            7 => PutLease::Kept,
            8 => PutLease::Renewed,
            _ if self.percent(50) => PutLease::Extended(self.deadline()),
            _ if self.percent(30) => PutLease::Temporary(self.lifetime()),
            _ => PutLease::Until(self.deadline()),
        };
        let is_leased = matches!(lease, PutLease::Given(_) | PutLease::Until(_));
        let put = Put { key, value: self.value(stays(lease)), lease, claims: None };
        let claims = is_leased && self.percent(30);
        if claims { Put { claims: Some(self.claimed()), ..put } } else { put }
    }

    fn put_child(&mut self) -> PutChild {
        PutChild { parent: self.key(), put: self.put(), is_numbered: self.percent(50) }
    }

    fn claimed(&mut self) -> PutClaim {
        let name = format!("claimed/{}", self.random.random_range(0..CLAIMED));
        PutClaim { lock: LockName::new(&name).expect("it is short"), label: self.label() }
    }

    /// A put, and the deletion of a range in which it is: what one transaction did before is there for what it does next.
    fn put_and_deletion(&mut self) -> Vec<TxnOperation> {
        let put = self.put();
        let (some, other) = (self.key(), self.key());
        let to = if other > put.key { other } else { past_own_keys() };
        let range = KeyRange { from: Some(some.min(put.key.clone())), to: Some(to) };
        vec![TxnOperation::Put(put), TxnOperation::DeleteRange(range)]
    }

    /// One operation, or two that belong together: a session, and the entry that is put with it.
    fn operations(&mut self) -> Vec<TxnOperation> {
        match self.random.random_range(0..100) {
            0..20 => vec![TxnOperation::Get(self.key())],
            20..35 => vec![TxnOperation::Select(self.select())],
            35..60 => vec![TxnOperation::Put(self.put())],
            60..70 => vec![TxnOperation::PutChild(self.put_child())],
            70..78 => vec![TxnOperation::Delete(self.key())],
            78..80 => {
                let deadline = if self.percent(70) { Some(self.deadline()) } else { None };
                vec![TxnOperation::Expire(Expire { key: self.key(), deadline })]
            }
            80..83 => vec![TxnOperation::DeleteRange(self.own_range())],
            83..85 => self.put_and_deletion(),
            _ => {
                let session = if self.percent(80) { SessionId(self.random.random()) } else { self.session() };
                let new = NewSession { session, ttl: self.ttl(), label: self.label(), address: None, owner: None };
                let lease = PutLease::Given(Lease { session, at_end: self.at_end() });
                let claims = if self.percent(30) { Some(self.claimed()) } else { None };
                let put = Put { key: self.key(), value: self.value(stays(lease)), lease, claims };
                vec![TxnOperation::Open(new), TxnOperation::Put(put)]
            }
        }
    }

    fn branch(&mut self, most: usize) -> Vec<TxnOperation> {
        let count = self.random.random_range(0..=most);
        (0..count).flat_map(|_| self.operations()).collect()
    }

    /// A transaction that has a valid form, though not always valid values.
    pub(crate) fn txn(&mut self) -> Txn {
        loop {
            let (compares, then, otherwise) = match self.random.random_range(0..TXNS_PER_LARGEST) {
                0 => self.largest(TXN_OPERATIONS_MAX),
                1 => self.largest(TXN_OPERATIONS_MAX + 1),
                _ => {
                    let compares = self.random.random_range(0..3);
                    let compares = (0..compares).map(|_| self.compare()).collect();
                    (compares, self.branch(4), self.branch(2))
                }
            };
            if let Ok(txn) = Txn::from_log(compares, then, otherwise) {
                let txn = if self.percent(50) { txn.falling_back() } else { txn };
                return if self.percent(15) { txn.by_attached(self.attached()) } else { txn };
            }
        }
    }

    /// The parts of a transaction with this number of compares or of operations.
    fn largest(&mut self, count: usize) -> (Vec<Compare>, Vec<TxnOperation>, Vec<TxnOperation>) {
        let number = |number: usize| Key::from_log(format!("g/much/{number:03}").as_bytes()).expect("it is not empty");
        let put = |it: &mut Self, place| {
            let lease = PutLease::Given(Lease { session: it.session(), at_end: AtLeaseEnd::Delete });
            TxnOperation::Put(Put { key: number(place), value: Value::default(), lease, claims: None })
        };
        match self.random.random_range(0..4) {
            0 => ((0..count).map(|_| self.compare()).collect(), self.branch(2), Vec::new()),
            1 => (Vec::new(), (0..count).map(|place| TxnOperation::Delete(number(place))).collect(), Vec::new()),
            2 => (Vec::new(), (0..count).map(|place| put(self, place)).collect(), Vec::new()),
            _ => (vec![self.compare()], Vec::new(), (0..count).map(|_| TxnOperation::Get(self.key())).collect()),
        }
    }
}

/// The first key that is none of this grammar's, in order.
fn past_own_keys() -> Key {
    Key::from_log(b"g0").expect("it is not empty")
}

/// Whether an entry that is put with this lease may be there for the rest of the run.
fn stays(lease: PutLease) -> bool {
    !matches!(lease, PutLease::Given(Lease { at_end: AtLeaseEnd::Delete, .. }))
}

/// Adds to a list of a bounded length, in the place of some other one.
fn remember<T>(known: &mut Vec<T>, new: T, random: &mut StdRng) {
    if known.len() >= KNOWN_MAX {
        known.swap_remove(random.random_range(0..known.len()));
    }
    known.push(new);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{super::words::Words, *};

    /// A variant that the grammar never says would be one that no run attacks.
    #[test]
    fn the_grammar_says_every_word() {
        let mut grammar = Grammar::new(7);
        let mut words = Words::default();
        for _ in 0..20_000 {
            words.note_txn(&grammar.txn());
        }
        let said: BTreeSet<_> = words.counts().map(|(word, _)| word).collect();
        let unsaid: Vec<_> = Words::all().filter(|word| !said.contains(word)).collect();
        assert!(unsaid.is_empty(), "the grammar never says {unsaid:?}");
    }
}
