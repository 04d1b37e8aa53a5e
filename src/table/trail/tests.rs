//! The lines of each kind of command.

use std::sync::Arc;

use lockkeeper_audit::{Rotation, files_in, verify};
use tempfile::TempDir;

use super::*;
use crate::{Applied, Batch, EntryId, MemberNode, Table};

const RAISE: Command = Command::RaiseVersion { to: Version::AUDITED };

fn table(sink: Option<Sink>) -> Table {
    Table::new(None).with_audit(Audit::new("c", sink))
}

fn entry(index: u64) -> EntryId {
    EntryId { term: 1, index }
}

/// The trail as a snapshot hands it on.
fn stored_and_read(trail: Trail) -> Trail {
    let (head, is_restored) = trail.to_stored().expect("it has lines");
    Trail::from_stored(head, is_restored)
}

fn apply(table: &Table, index: u64, commands: Vec<Command>) {
    let time = Time { stamp: Stamp(index * 1000), wall: WallTime(index) };
    table.apply(entry(index), Batch { time, limits: Limits::default(), commands }, false);
}

fn open(session: u128) -> Command {
    let ttl = Ttl::from_millis(5000).unwrap();
    let label = Label::new("ann").unwrap();
    let owner = Some(Identity::new("team/ann").unwrap());
    Command::Open { session: SessionId(session), ttl, label, address: None, owner }
}

fn acquire(session: u128, wait: Wait) -> Command {
    let name = LockName::new("a").unwrap();
    let want = Want { name, mode: Mode::Exclusive, data: None, keep_data: false, must_exist: false };
    let operation = Operation::Acquire(Acquire::new(vec![want], wait, 0).unwrap());
    Command::Session { session: SessionId(session), request: None, operation }
}

fn force() -> Command {
    let name = LockName::new("a").unwrap();
    let reason = Reason::new("why").unwrap();
    let token = None;
    let after = Token(0);
    let up_to = None;
    let by = Some(Identity::new("ops").unwrap());
    Command::ForceRelease(ForceRelease { name, token, after, up_to, reason, now: true, by })
}

/// Every act of an operator's, about a lock of this name.
fn acts(name: &str) -> Vec<Command> {
    let lock = || LockName::new(name).unwrap();
    let by = || Some(Identity::new("ops").unwrap());
    let reason = Reason::new("why").unwrap();
    let force = ForceRelease { name: lock(), token: None, after: Token(0), up_to: None, reason, now: true, by: by() };
    vec![
        Command::Resize { name: lock(), permits: Permits::new(3).unwrap(), by: by() },
        Command::RemoveWaiter { name: lock(), ticket: Ticket(1), by: by() },
        Command::LiftDelay { name: lock(), by: by() },
        Command::DropData { prefix: name.to_owned(), after: None, by: by() },
        Command::ForceRelease(force),
    ]
}

/// The entries of a history, from the second on.
fn history() -> Vec<Vec<Command>> {
    let by = Some(Identity::new("ops").unwrap());
    let note = Note { who: Some("eve".to_owned()), act: "refused".to_owned(), ..Note::default() };
    vec![
        vec![open(1), Command::BeginAudit, RAISE, open(2)],
        vec![open(1), open(2), acquire(1, Wait::Forever), acquire(2, Wait::Forever)],
        vec![Command::Note(note), force()],
        vec![Command::Close { session: SessionId(2), by, reason: Some(Reason::new("dead").unwrap()) }],
        vec![Command::Tick],
        vec![],
        vec![],
        vec![Command::Tick],
    ]
}

fn written(directory: &TempDir, head: Head) -> Vec<AuditLine<'static>> {
    let mut lines = Vec::new();
    let keep = |line: &AuditLine<'_>| {
        // To its text and back: it borrows nothing then.
        let text = serde_json::to_string(line).unwrap();
        lines.push(serde_json::from_str(&text).unwrap());
    };
    verify(&files_in(directory.path()).unwrap(), Some(head.hash), keep).unwrap();
    lines
}

#[test]
fn the_lines_say_who_did_what_once_the_trail_has_begun() {
    let directory = TempDir::new().unwrap();
    let rotation = Rotation { file_bytes: u64::MAX, files_kept: 0 };
    let sink = Sink::open(directory.path(), "c", rotation).unwrap();
    let other = table(None);
    let table = table(Some(sink.clone()));
    for (commands, index) in history().into_iter().zip(2..) {
        apply(&table, index, commands.clone());
        apply(&other, index, commands);
    }
    sink.sync().unwrap();
    let head = table.read(|applied| applied.trail.head());
    assert_eq!(other.read(|applied| applied.trail.head()), head);
    let lines = written(&directory, head);
    let whats: Vec<AuditEvent> = lines.iter().map(|line| line.what).collect();
    let expected = [
        // Session 1 is older than the trail.
        AuditEvent::Begun,
        AuditEvent::VersionRaised,
        AuditEvent::SessionOpened,
        AuditEvent::Granted,
        AuditEvent::Queued,
        AuditEvent::Note,
        AuditEvent::ForcedRelease,
        AuditEvent::Lost,
        AuditEvent::Granted,
        AuditEvent::SessionEnded,
        AuditEvent::Released,
        AuditEvent::SessionEnded,
    ];
    assert_eq!(whats, expected, "{lines:#?}");
    let text = |text: &Option<std::borrow::Cow<'static, str>>| text.as_deref().unwrap_or_default().to_owned();
    assert_eq!((lines[0].count, lines[2].session), (Some(1), Some(Session(2))));
    assert_eq!((text(&lines[2].owner), text(&lines[2].label)), ("team/ann".to_owned(), "ann".to_owned()));
    assert_eq!((text(&lines[5].by), text(&lines[5].act)), ("eve".to_owned(), "refused".to_owned()));
    for forced in [&lines[6], &lines[7]] {
        assert_eq!((text(&forced.by), text(&forced.reason)), ("ops".to_owned(), "why".to_owned()));
    }
    assert_eq!((lines[8].token, lines[8].ticket), (Some(2), Some(1)));
    assert_eq!((text(&lines[9].by), text(&lines[9].how)), ("ops".to_owned(), "closed".to_owned()));
    assert_eq!(text(&lines[9].reason), "dead");
    assert_eq!((lines[11].session, text(&lines[11].how)), (Some(Session(1)), "expired".to_owned()));
    assert_eq!((lines[11].index, lines[11].wall_ms), (8, Some(8)));
}

/// An act has a line of its own, and one that was refused has none: nothing happened.
#[test]
fn acts_that_are_refused_leave_no_line() {
    let table = table(None);
    let semaphore = {
        let mode = Mode::Permit(Permits::new(2).unwrap());
        let want = Want { name: LockName::new("s").unwrap(), mode, data: None, keep_data: false, must_exist: false };
        let operation = Operation::Acquire(Acquire::new(vec![want], Wait::Forever, 0).unwrap());
        Command::Session { session: SessionId(1), request: None, operation }
    };
    apply(&table, 2, vec![Command::BeginAudit, RAISE, open(1), acquire(1, Wait::Forever), semaphore]);
    let lines = || table.read(|applied| applied.trail.head().lines);
    let mut refused = 0;
    let mut done = 0;
    for (act, index) in ["absent", "a", "s"].into_iter().flat_map(acts).zip(3..) {
        let before = lines();
        let time = Time { stamp: Stamp(2000), wall: WallTime(index) };
        let batch = Batch { time, limits: Limits::default(), commands: vec![act.clone()] };
        let reply = table.apply(entry(index), batch, true).replies.remove(0).reply;
        let is_refused = matches!(reply, Reply::Refused(_));
        assert_eq!(lines() == before, is_refused, "{act:?}: {reply:?}");
        *if is_refused { &mut refused } else { &mut done } += 1;
    }
    assert_eq!((refused, done), (2, 13), "the locks that are no semaphores");
}

#[test]
fn no_member_writes_a_trail_and_so_there_are_no_lines() {
    let table = table(None);
    apply(&table, 2, vec![RAISE, Command::RaiseVersion { to: Versions::OWN.highest }, open(1)]);
    apply(&table, 3, vec![acquire(1, Wait::Forever), force(), Command::Tick]);
    assert_eq!(table.read(|applied| applied.trail), Trail::default());
    assert_eq!(table.freeze().trail.restored(), Trail::default());
    apply(&table, 4, vec![Command::BeginAudit, Command::BeginAudit, open(2)]);
    assert_eq!(table.read(|applied| applied.trail.head().lines), 2, "its begin, and the session");
}

fn claim(key: &str, session: u128) -> Command {
    let lease = Some(Lease { session: SessionId(session), at_end: AtLeaseEnd::Delete });
    let claims = Some(LockName::new("a").unwrap().into());
    let put =
        Put { key: Key::new(key.as_bytes()).unwrap(), value: Value::new(b"").unwrap(), lease: lease.into(), claims };
    Command::Txn(Txn::new(vec![], vec![TxnOperation::Put(put)], vec![]).unwrap())
}

#[test]
fn the_lines_tell_of_entries_as_of_locks() {
    let directory = TempDir::new().unwrap();
    let sink = Sink::open(directory.path(), "c", Rotation { file_bytes: u64::MAX, files_kept: 0 }).unwrap();
    let table = table(Some(sink.clone()));
    let delete = TxnOperation::Delete(Key::new(b"q3").unwrap());
    let delete = Command::Txn(Txn::new(vec![], vec![delete], vec![]).unwrap());
    let history = [
        vec![Command::BeginAudit, RAISE, open(1), open(2), open(3)],
        vec![claim("q1", 1), claim("q2", 2), claim("q3", 3)],
        vec![force(), Command::Close { session: SessionId(2), by: None, reason: None }],
        vec![delete],
    ];
    for (commands, index) in history.into_iter().zip(2..) {
        apply(&table, index, commands);
    }
    sink.sync().unwrap();
    let lines = written(&directory, table.read(|applied| applied.trail.head()));
    let told = lines.iter().filter(|line| line.lock.is_some());
    let told: Vec<_> = told.map(|line| (line.what, line.kind.is_some(), line.token)).collect();
    let expected = [
        (AuditEvent::Granted, true, Some(1)),
        (AuditEvent::Queued, true, Some(2)),
        (AuditEvent::Queued, true, Some(3)),
        (AuditEvent::ForcedRelease, false, None),
        (AuditEvent::Lost, true, Some(1)),
        (AuditEvent::Granted, true, Some(2)),
        (AuditEvent::Released, true, Some(2)),
        (AuditEvent::Granted, true, Some(3)),
        (AuditEvent::Released, true, Some(3)),
    ];
    assert_eq!(told, expected, "{lines:#?}");
    assert!(lines.iter().all(|line| line.ticket.is_none() || line.what == AuditEvent::Begun));
}

/// A repeat and a refusal change nothing, and have no line.
#[test]
fn the_lines_tell_who_a_session_belongs_to_once() {
    let directory = TempDir::new().unwrap();
    let sink = Sink::open(directory.path(), "c", Rotation { file_bytes: u64::MAX, files_kept: 0 }).unwrap();
    let table = table(Some(sink.clone()));
    let open = Command::Open {
        session: SessionId(1),
        ttl: Ttl::from_millis(60_000).unwrap(),
        label: Label::default(),
        address: None,
        owner: None,
    };
    let set_owner = |owner| Command::SetOwner { session: SessionId(1), owner: Identity::new(owner).unwrap() };
    apply(&table, 2, vec![Command::BeginAudit, RAISE, open]);
    apply(&table, 3, vec![set_owner("ann"), set_owner("ann"), set_owner("bob")]);
    sink.sync().unwrap();
    let lines = written(&directory, table.read(|applied| applied.trail.head()));
    let told = lines.iter().filter(|line| line.session == Some(Session(1)));
    let told: Vec<_> = told.map(|line| (line.what, line.index, line.owner.as_deref().unwrap_or("-"))).collect();
    assert_eq!(told, [(AuditEvent::SessionOpened, 2, "-"), (AuditEvent::OwnerSet, 3, "ann")], "{lines:#?}");
}

#[test]
fn the_lines_tell_of_sessions_that_transactions_open() {
    let directory = TempDir::new().unwrap();
    let sink = Sink::open(directory.path(), "c", Rotation { file_bytes: u64::MAX, files_kept: 0 }).unwrap();
    let table = table(Some(sink.clone()));
    let put = |lease| {
        let key = Key::new(b"q").unwrap();
        let value = Value::new(b"").unwrap();
        TxnOperation::Put(Put { key, value, lease, claims: None })
    };
    let branch = |session, who: &str| {
        let ttl = Ttl::from_millis(60_000).unwrap();
        let label = Label::new(who).unwrap();
        let new = NewSession { session, ttl, label, address: None, owner: Identity::new(who).ok() };
        let lease = PutLease::Given(Lease { session, at_end: AtLeaseEnd::Delete });
        vec![TxnOperation::Open(new), put(lease)]
    };
    let ann = branch(SessionId(1), "ann");
    let bob = branch(SessionId(2), "bob");
    let open = || Command::Txn(Txn::new(vec![], ann.clone(), bob.clone()).unwrap());
    let replace = Command::Txn(Txn::new(vec![], vec![put(PutLease::None)], vec![]).unwrap());
    for (commands, index) in
        [vec![Command::BeginAudit, RAISE, open()], vec![open()], vec![replace]].into_iter().zip(2..)
    {
        apply(&table, index, commands);
    }
    sink.sync().unwrap();
    let lines = written(&directory, table.read(|applied| applied.trail.head()));
    let told = lines.iter().filter(|line| line.session.is_some());
    let told: Vec<_> = told.map(|line| (line.what, line.index, line.owner.as_deref().unwrap_or("-"))).collect();
    // Only the branch that ran, and a repetition only renews.
    assert_eq!(told, [(AuditEvent::SessionOpened, 2, "ann"), (AuditEvent::SessionEnded, 4, "-")], "{lines:#?}");
}

/// Wherever the history is cut by a snapshot, and by a message.
#[test]
fn a_node_that_goes_on_from_a_snapshot_has_the_same_chain() {
    let whole = table(None);
    let mut entries = Vec::new();
    for (commands, index) in history().into_iter().zip(2..) {
        apply(&whole, index, commands.clone());
        entries.push((index, commands, whole.freeze()));
    }
    let head = whole.read(|applied| applied.trail.head());
    for (at, _, frozen) in &entries {
        let machine = Machine::from_records(frozen.machine.records()).unwrap();
        let trail = stored_and_read(frozen.trail);
        let later = table(None);
        drop(later.restore(Applied { machine, trail, ..frozen.clone() }));
        for (index, commands, _) in entries.iter().filter(|(index, ..)| index > at) {
            apply(&later, *index, commands.clone());
        }
        assert_eq!(later.read(|applied| applied.trail.head()), head, "cut after entry {at}");
    }
}

#[test]
fn a_restored_cluster_begins_a_trail_that_names_the_old_one() {
    let old = table(None);
    for (commands, index) in history().into_iter().zip(2..).take(3) {
        apply(&old, index, commands);
    }
    let copy = old.freeze();
    let trail = stored_and_read(copy.trail.restored());
    assert_eq!(trail.head(), Head::default());
    let directory = TempDir::new().unwrap();
    let sink = Sink::open(directory.path(), "c", Rotation { file_bytes: u64::MAX, files_kept: 0 }).unwrap();
    let new = table(Some(sink.clone()));
    let restore = Restore { at: WallTime(0), draw: 7, first_token: Some(Token(1 << 40)), closed_ms: None };
    let machine = copy.machine.restored(&restore).unwrap();
    drop(new.restore(Applied { machine, trail, ..copy.clone() }));
    apply(&new, 20, vec![open(7), acquire(7, Wait::Forever)]);
    sink.sync().unwrap();
    let lines = written(&directory, new.read(|applied| applied.trail.head()));
    assert_eq!(lines[0].what, AuditEvent::Restored);
    let reason = lines[0].reason.clone().unwrap();
    assert!(reason.contains(&copy.trail.head().hash.to_string()), "{reason}");
}

#[test]
fn members_that_come_change_and_go_have_lines() {
    let node = |id: u64| (id, MemberNode { peer_address: format!("h{id}:1"), ..MemberNode::default() });
    let membership = |index: u64, voters: &[u64], nodes: &[u64]| {
        let voters = vec![voters.iter().copied().collect()];
        let nodes = nodes.iter().map(|id| node(*id)).collect();
        AppliedMembership { entry: Some(entry(index)), voters, nodes }
    };
    let directory = TempDir::new().unwrap();
    let sink = Sink::open(directory.path(), "c", Rotation { file_bytes: u64::MAX, files_kept: 0 }).unwrap();
    let table = Arc::new(table(Some(sink.clone())));
    table.pass(entry(1), Some(membership(1, &[1], &[1])));
    apply(&table, 2, vec![Command::BeginAudit, RAISE]);
    table.pass(entry(3), Some(membership(3, &[1], &[1, 2])));
    table.pass(entry(4), Some(membership(4, &[1, 2], &[1, 2])));
    table.pass(entry(5), Some(membership(5, &[2], &[2])));
    sink.sync().unwrap();
    let lines = written(&directory, table.read(|applied| applied.trail.head()));
    let told: Vec<_> = lines[2..].iter().map(|line| (line.what, line.node, line.how.as_deref())).collect();
    let expected = [
        (AuditEvent::MemberChanged, Some(2), Some("learner")),
        (AuditEvent::MemberChanged, Some(2), Some("voter")),
        (AuditEvent::MemberRemoved, Some(1), None),
    ];
    assert_eq!(told, expected);
    assert!(lines[2..].iter().all(|line| line.wall_ms.is_none()));
}
