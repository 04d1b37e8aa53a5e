//! What listeners, calls and readers of the table are told.

use super::*;
use crate::{
    calls::BrokenCall,
    listeners::{NOTICES_KEPT, Notices},
};
use lockkeeper_machine::{
    Acquire, Label, LockName, Mode, OpenIds, Operation, Request, Revocation, Ticket, Token, Ttl, Wait, Want,
};

fn notice() -> Notice {
    let reason = lockkeeper_machine::Reason::new("dead").expect("short");
    Notice {
        session: SessionId(1),
        what: SessionLoss::Revoked(Revocation { token: Token(1), reason, remaining_ms: 0 }),
    }
}

#[tokio::test]
async fn a_listener_that_misses_a_notice_is_told_so() {
    let (listener, mut notices) = Notices::new();
    let table = Table::default();
    table.listen(SessionId(1), listener.clone());
    for _ in 0..NOTICES_KEPT {
        assert!(listener.send(notice()));
    }
    assert!(notices.next().await.is_some());
    assert!(listener.send(notice()));
    table.notify(notice());
    assert!(notices.next().await.is_none(), "also while it still listens for other sessions");
    assert!(lock(&table.listeners).is_empty());
}

/// An apply that stands still holds the lock of the table.
#[test]
fn the_summary_can_be_read_while_an_entry_is_applied() {
    let table = Table::default();
    let ttl = Ttl::from_millis(5000).unwrap();
    let open = Command::Open { session: SessionId(1), ttl, label: Label::default(), address: None, owner: None };
    let batch = Batch { time: Time::default(), limits: Limits::default(), commands: vec![open] };
    table.apply(EntryId { term: 1, index: 1 }, batch, false);

    let _applying = table.write();
    let summary = table.summary();
    assert_eq!((summary.index, summary.counts.sessions), (1, 1));
}

fn acquire(request: Option<u64>) -> Command {
    let name = LockName::new("a").unwrap();
    let want = Want { name, mode: Mode::Exclusive, data: None, keep_data: false, must_exist: false };
    let operation = Operation::Acquire(Acquire::new(vec![want], Wait::Forever, 0).unwrap());
    let request = request.map(|id| Request { id, open: OpenIds::default() });
    Command::Session { session: SessionId(1), request, operation }
}

/// The proposer drops a reply whose caller is gone.
#[tokio::test]
async fn a_wait_whose_call_was_gone_before_it_queued_is_repeatable_only_with_a_request_id() {
    let table = Table::default();
    let mut breaks = table.calls().breaks().expect("the only listener");
    let ttl = Ttl::from_millis(5000).unwrap();
    let label = Label::default();
    let open = Command::Open { session: SessionId(1), ttl, label, address: None, owner: None };
    let commands = vec![open, acquire(None), acquire(None), acquire(Some(1))];
    let time = Time { stamp: Stamp(1), wall: WallTime(1) };
    let entry = EntryId { term: 1, index: 1 };
    drop(table.apply(entry, Batch { time, limits: Limits::default(), commands }, true));
    let broken = |ticket, is_repeatable| Some(BrokenCall { ticket: Ticket(ticket), is_repeatable });
    assert_eq!((breaks.recv().await, breaks.recv().await), (broken(1, false), broken(2, true)));
    let unnamed: Vec<_> = table.read(|applied| applied.machine.waits_without_request().collect());
    assert_eq!(unnamed, [Ticket(1)]);
}

/// Leaders' clocks differ, and a later one may be behind. One that was wrong by more than an hour is forgotten.
#[test]
fn the_latest_wall_time_does_not_go_back() {
    let table = Table::default();
    let hour = 3_600_000;
    let times = [(5, 5), (9, 9), (7, 9), (9 + 2 * hour, 9 + 2 * hour), (8 + hour, 8 + hour), (9, 8 + hour)];
    for (index, (wall, latest)) in (1..).zip(times) {
        let time = Time { stamp: Stamp(index), wall: WallTime(wall) };
        let batch = Batch { time, limits: Limits::default(), commands: vec![Command::Tick] };
        table.apply(EntryId { term: 1, index }, batch, false);
        assert_eq!(table.latest_wall(), WallTime(latest));
    }
}
