//! Children of keys, and the attachments of sessions: what many clients of one queue need of the machine.
//!
//! A protocol of trees keeps with each node how many children it has, had, and when that changed last; and it numbers children in the order
//! in which they are made. As a write of the parent's entry, that would make all clients of one lock compare and write one entry, and
//! conflict without end. So the machine counts: a put may name a parent ([`PutChild`]), and the children of the parent change in the same
//! revision, without a write of it: no compare notices.
//!
//! * **A child ends in many ways**, and all of them count: a deletion, a deletion of a range, the end of its lease, its own deadline, a
//!   forced release. Only the machine sees all of them.
//! * **A parent outlives its children.** It has neither a lease nor a deadline of its own, from its first child on for ever, and a
//!   transaction that would delete it with children fails. A deletion of a range takes parents and children at once, in any order of
//!   their keys.
//! * **Whatever writes the keys**: an ordinary put of a child keeps its parent, and one of a parent keeps its children. A parent that is
//!   deleted and put again begins anew, with number 0.
//! * **A child whose lease is over and whose end was not handled yet still counts**, though nobody sees it: a parent can be deleted a
//!   moment later than its last child seems to be gone, never a moment earlier.
//!
//! What cannot be done as the table is *fails* ([`TxnFailure`]): nothing is done, and `otherwise` runs, if the transaction falls back
//! ([`Txn::falling_back`]); the reply says which operation it was, and why.
//!
//! A session may be attached ([`Command::Attach`]) by one connection after the other. A transaction may demand that the attachment it
//! names is the last one: what an earlier connection sent late then does nothing. It may also close the session ([`Txn::closing`]).
//!
//! Left out: an index of the children of a key. An adapter gives them keys of one range.

use std::sync::Arc;

use super::transactions::{Draft, OperationObstacle};
use crate::*;

impl Machine {
    /// Refuses a transaction of a connection that lost its session to another one.
    pub(super) fn ensure_attached(&self, txn: &Txn) -> Result<(), Refusal> {
        let Some(Attached { session, number }) = txn.attached() else { return Ok(()) };
        self.alive(session)?;
        match self.sessions.existing(session).attached {
            last if last == number || Planted::MovedSessionWrites.is_on() => Ok(()),
            last => Err(Refusal::SessionMoved { number: last }),
        }
    }

    /// Closes the session of a transaction that was carried out, if that is asked for.
    pub(super) fn close_attached(&mut self, txn: &Txn, events: &mut Vec<Event>) {
        let Some(Attached { session, .. }) = txn.attached().filter(|_| txn.closes()) else { return };
        // The transaction may have ended the session already: a session that lives as long as its entries ends with its last entry.
        if self.alive(session).is_ok() {
            self.end_session(session, SessionEnd::Closed, events);
        }
    }

    /// Takes the entries that end before the operations from the children of their parents.
    pub(super) fn plan_ends(&self, draft: &mut Draft) {
        let mut ends = Vec::new();
        for (key, revision) in &draft.ended {
            let is_deleted = self.entry(key).is_none();
            let parent = self.entries.get(key).filter(|_| is_deleted).and_then(|entry| entry.parent().cloned());
            ends.extend(parent.map(|parent| (parent, *revision)));
        }
        for (parent, revision) in ends {
            self.plan_child_end(&parent, revision, draft);
        }
    }

    /// A put of a key without an entry, and one more for its parent to count.
    pub(super) fn plan_child(&self, child: &PutChild, draft: &mut Draft) -> Result<TxnResult, OperationObstacle> {
        let PutChild { parent, .. } = child;
        let Some(above) = self.drafted(parent, draft) else { return Err(TxnFailureReason::NoParent.into()) };
        if above.ends() && !Planted::ChildBelowLease.is_on() {
            return Err(TxnFailureReason::ParentEnds.into());
        }

        let children = above.children().unwrap_or_default();
        let put = child.numbered(children.made);
        if self.drafted(&put.key, draft).is_some() {
            return Err(TxnFailureReason::ChildExists.into());
        }

        self.plan_put(&put, Some(parent), draft)?;
        // A put whose deadline has passed makes no entry, so the parent does not count it.
        if self.drafted(&put.key, draft).is_some() {
            let children = children.with_one_more(draft.revision);
            draft.set_children(parent, &above, children);
        }
        Ok(TxnResult::PutChild(put.key))
    }

    /// A child of this key ended, as of a revision.
    fn plan_child_end(&self, parent: &Key, revision: Revision, draft: &mut Draft) {
        // A parent may be deleted by the same operation as its children, and before them.
        let Some(above) = self.drafted(parent, draft) else { return };
        let children = above.children().unwrap_or_default().with_one_less(revision);
        draft.set_children(parent, &above, children);
    }

    /// Deletes an existing entry. Fails if it has children.
    pub(super) fn plan_deletion(&self, key: &Key, entry: &Entry, draft: &mut Draft) -> Result<(), OperationObstacle> {
        if entry.kin.is_some() {
            return self.plan_deletions(vec![key.clone()], draft);
        }
        Ok(draft.write(key.clone(), None)?)
    }

    /// Deletes existing entries. Fails for one that then still has children. All entries of one operation are deleted at once, so the order
    /// of their keys does not matter.
    pub(super) fn plan_deletions(&self, keys: Vec<Key>, draft: &mut Draft) -> Result<(), OperationObstacle> {
        for key in &keys {
            let parent = self.drafted(key, draft).and_then(|entry| entry.parent().cloned());
            if let Some(parent) = parent {
                self.plan_child_end(&parent, draft.revision, draft);
            }
        }

        for key in keys {
            let is_left = |children: Children| children.live > 0 && !Planted::ParentDeletedWithChildren.is_on();
            if self.drafted(&key, draft).and_then(|entry| entry.children()).is_some_and(is_left) {
                return Err(TxnFailureReason::ChildrenLeft.into());
            }
            draft.write(key, None)?;
        }
        Ok(())
    }

    /// A child of this key ended by itself.
    pub(super) fn end_child(&mut self, parent: &Key, changed: Revision) {
        let above = self.entries.existing(parent);
        let children = above.children().unwrap_or_default().with_one_less(changed);
        let above = Arc::new(above.with_children(Some(children)));
        self.entries.set_children(parent, above);
    }
}

impl Draft {
    /// Gives an entry that the operations see other children.
    fn set_children(&mut self, key: &Key, entry: &Entry, children: Children) {
        let mut entry = entry.with_children(Some(children));
        if Planted::ChildModifiesParent.is_on() {
            entry.modified = children.changed;
        }

        let entry = Arc::new(entry);
        if let Some(written) = self.writes.get_mut(key) {
            *written = Some(entry);
        } else {
            self.parents.insert(key.clone(), entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: SessionId = SessionId(1);

    fn key(key: &str) -> Key {
        Key::new(key.as_bytes()).unwrap()
    }

    fn put_of(name: &str, lease: PutLease) -> Put {
        Put { key: key(name), value: Value::default(), lease, claims: None }
    }

    fn put(name: &str, lease: PutLease) -> TxnOperation {
        TxnOperation::Put(put_of(name, lease))
    }

    fn child(parent: &str, name: &str, lease: PutLease) -> TxnOperation {
        TxnOperation::PutChild(PutChild { parent: key(parent), put: put_of(name, lease), is_numbered: false })
    }

    fn leased(at_end: AtLeaseEnd) -> PutLease {
        PutLease::Given(Lease { session: ANN, at_end })
    }

    fn opens() -> TxnOperation {
        let ttl = Ttl::from_millis(1000).unwrap();
        TxnOperation::Open(NewSession { session: ANN, ttl, label: Label::default(), address: None, owner: None })
    }

    fn commit(machine: &mut Machine, then: Vec<TxnOperation>) -> Result<Reply, Refusal> {
        let txn = Txn::new(vec![], then, vec![]).unwrap();
        let reply = machine.commit(&txn, &mut Vec::new());
        machine.check().unwrap();
        reply
    }

    fn table(then: Vec<TxnOperation>) -> Machine {
        let mut machine = Machine::default();
        commit(&mut machine, then).unwrap();
        machine
    }

    /// Lets the session end without handling it: its budget is over.
    fn let_end(machine: &mut Machine) {
        machine.clock.arrive(Stamp(1000));
        assert!(machine.clock.is_behind());
    }

    fn children(machine: &Machine, name: &str) -> Option<(u64, u64, u64)> {
        let Children { made, live, changed } = machine.entry(&key(name))?.children()?;
        Some((made, live, changed.0))
    }

    /// What nobody uses costs a pointer.
    #[test]
    fn an_entry_pays_a_pointer_for_children_that_it_has_not() {
        let before = size_of::<[Revision; 2]>()
            + size_of::<u64>()
            + size_of::<Option<Lease>>()
            + size_of::<Option<Stamp>>()
            + size_of::<Option<Arc<Claim>>>()
            + size_of::<Value>();
        assert!(size_of::<Entry>() <= before + size_of::<usize>() + 8, "{} after {before}", size_of::<Entry>());
        let bytes = |kin| {
            let mut machine = table(vec![put("a", PutLease::None)]);
            let before = machine.bytes();
            commit(&mut machine, vec![put("p", PutLease::None)]).unwrap();
            if kin {
                commit(&mut machine, vec![child("a", "c", PutLease::None)]).unwrap();
            } else {
                commit(&mut machine, vec![put("c", PutLease::None)]).unwrap();
            }
            machine.bytes() - before
        };
        // Twice: the parent's counts, and the child's parent with its key.
        assert_eq!(bytes(true) - bytes(false), 2 * 80 + 1);
    }

    /// The end of the former child is counted once, and so is the new one.
    #[test]
    fn a_child_whose_lease_is_over_ends_before_it_is_made_again() {
        let then = vec![put("p", PutLease::None), opens(), child("p", "c", leased(AtLeaseEnd::Delete))];
        let mut machine = table(then);
        let_end(&mut machine);
        assert!(machine.entry(&key("c")).is_none());
        assert_eq!(children(&machine, "p"), Some((1, 1, 1)), "it still counts");

        commit(&mut machine, vec![child("p", "c", PutLease::None)]).unwrap();
        assert_eq!(children(&machine, "p"), Some((2, 1, 3)));
        assert_eq!(machine.history().after(Revision(1), None).unwrap().count(), 2);
    }

    /// A transaction that does not name the child leaves it to the end of its session, and fails until then.
    #[test]
    fn a_parent_is_kept_until_the_end_of_its_child_was_handled() {
        let then = vec![put("p", PutLease::None), opens(), child("p", "c", leased(AtLeaseEnd::Delete))];
        let mut machine = table(then);
        let_end(&mut machine);
        let delete = || vec![TxnOperation::Delete(key("c")), TxnOperation::Delete(key("p"))];
        let refused = Refusal::TxnFailed { index: 1, reason: TxnFailureReason::ChildrenLeft };
        assert_eq!(commit(&mut machine, delete()), Err(refused));

        let time = Time { stamp: Stamp(1000), wall: WallTime(0) };
        machine.apply_batch(time, Limits::NONE, [Command::Tick], &mut Vec::new());
        assert_eq!(children(&machine, "p"), Some((1, 0, 2)));
        commit(&mut machine, delete()).unwrap();
        assert!(machine.entries(&KeyRange::default()).next().is_none());
    }

    /// An expired lease no longer counts, even before its end has been processed.
    #[test]
    fn an_entry_whose_lease_is_over_ends_it_before_it_has_a_child() {
        let mut machine = table(vec![opens(), put("p", leased(AtLeaseEnd::Keep))]);
        let below = || vec![child("p", "c", PutLease::None)];
        let refused = Refusal::TxnFailed { index: 0, reason: TxnFailureReason::ParentEnds };
        assert_eq!(commit(&mut machine, below()), Err(refused));

        let_end(&mut machine);
        commit(&mut machine, below()).unwrap();
        let parent = machine.entry(&key("p")).unwrap();
        assert_eq!((parent.modified, parent.lease, parent.is_expired), (Revision(2), None, true));
        assert_eq!(children(&machine, "p"), Some((1, 1, 3)));
    }

    /// The counts of a parent take room, and the limit knows it.
    #[test]
    fn a_child_has_room_with_the_counts_of_its_parent_or_is_refused() {
        let before = table(vec![put("p", PutLease::None)]);
        let needs = {
            let mut machine = before.clone();
            commit(&mut machine, vec![child("p", "c", PutLease::None)]).unwrap();
            machine.bytes()
        };
        for (room, fits) in [(needs, true), (needs - 1, false)] {
            let mut machine = before.clone();
            machine.batch.set_limits(Limits { table_bytes: room as usize, ..Limits::NONE });
            let made = commit(&mut machine, vec![child("p", "c", PutLease::None)]);
            assert_eq!(made.is_ok(), fits, "{made:?}");
        }
    }

    /// A child is never a temporary entry of an adapter, even if it is the only entry of its session.
    #[test]
    fn a_child_with_a_session_of_its_own_counts_as_others() {
        let mut machine = table(vec![put("p", PutLease::None)]);
        let then = vec![opens(), child("p", "c", leased(AtLeaseEnd::Delete))];
        assert!(Txn::temporaries(&then).is_empty());
        let txn = Txn::new(vec![], then, vec![]).unwrap();
        machine.commit_within_limits(&txn, &mut Vec::new()).unwrap();
        assert_eq!(machine.sessions.ordinary(), 1);
    }

    /// A member of an earlier version must not meet them in the log.
    #[test]
    fn what_earlier_versions_do_not_know_needs_its_version() {
        let txn = |then: Vec<TxnOperation>| Txn::new(vec![], then, vec![]).unwrap();
        let get = TxnOperation::Get(key("a"));
        let short = txn(vec![get.clone(); TXN_OPERATIONS_BEFORE_CHILDREN_MAX]);
        assert_eq!(Command::Txn(short.clone()).since(), Version::KEYSPACE);
        let attached = Attached { session: ANN, number: 1 };
        for later in [
            txn(vec![get; TXN_OPERATIONS_BEFORE_CHILDREN_MAX + 1]),
            txn(vec![child("p", "c", PutLease::None)]),
            short.clone().falling_back(),
            short.clone().by_attached(attached),
            short.closing(attached),
        ] {
            assert_eq!(Command::Txn(later).since(), Version::CHILDREN);
        }
        assert_eq!(Command::Attach { session: ANN }.since(), Version::CHILDREN);

        let machine = table(vec![put("p", PutLease::None), child("p", "c", PutLease::None)]);
        let since: Vec<_> = machine.records().map(|record| record.since()).collect();
        assert_eq!(since.iter().filter(|since| **since == Version::CHILDREN).count(), 2, "the parent and the child");
    }
}
