//! Tests: large commands wait for their turn, and small ones pass them.

use futures::{FutureExt as _, future::join_all, poll};
use tokio::sync::watch;

use super::*;
use crate::proposals::under_way::BYTES_UNDER_WAY_MAX;
use lockkeeper_machine::{Key, KeyRange, Put, PutLease, Txn, TxnOperation, VALUE_BYTES_MAX, Value};
use lockkeeper_table::{Batch, EntryId, codec::commands::encode_command};

/// A proposer over a table of 1,000 entries, and its queue.
fn proposer_with_entries() -> (Proposer, ProposalQueue) {
    let table = Arc::new(Table::default());
    let put = |number: usize| {
        let key = Key::new(format!("{number:05}").as_bytes()).expect("short");
        TxnOperation::Put(Put { key, value: Value::default(), lease: PutLease::None, claims: None })
    };
    let puts = Command::Txn(Txn::new(vec![], (0..1000).map(put).collect(), vec![]).expect("in bounds"));
    let time = Time::default();
    let limits = Limits::default();
    table.apply(EntryId { term: 1, index: 1 }, Batch { time, limits, commands: vec![puts] }, false);

    let leadership = Arc::new(TermLeadership::new(1, Stamp(0), Environment::system()));
    Proposer::new(watch::channel(Some(leadership)).1, table, ProposalLimits::REAL)
}

/// Much work in a few bytes, which asks for nothing more.
fn delete_ranges() -> Command {
    let deletes = vec![TxnOperation::DeleteRange(KeyRange::default()); 16];
    Command::Txn(Txn::new(vec![], deletes, vec![]).expect("in bounds"))
}

/// Little work, and many bytes.
fn put_of_many_bytes() -> Command {
    let key = Key::new(b"large").expect("short");
    let value = Value::new(&vec![7; VALUE_BYTES_MAX]).expect("at the limit");
    let put = TxnOperation::Put(Put { key, value, lease: PutLease::None, claims: None });
    Command::Txn(Txn::new(vec![], vec![put], vec![]).expect("in bounds"))
}

#[tokio::test]
async fn large_commands_wait_outside_of_the_queue_and_renewals_pass_them() {
    let patience = Duration::from_secs(60);
    let bytes = encode_command(&put_of_many_bytes()).len();
    let kinds = [
        (delete_ranges as fn() -> Command, UNITS_UNDER_WAY_MAX / (16 * 1001)),
        (put_of_many_bytes, BYTES_UNDER_WAY_MAX / bytes),
    ];
    for (large, fitting) in kinds {
        let (proposer, mut intake) = proposer_with_entries();
        let calls: Vec<_> = (0..2 * fitting).map(|_| Box::pin(proposer.propose(large(), patience))).collect();
        let mut calls = join_all(calls);
        assert!(poll!(&mut calls).is_pending());
        assert_eq!(proposer.queued(), fitting as u64);

        // The commands of an order do not wait: others would pass them.
        let in_order = proposer.propose_in(Some(1), large(), patience).now_or_never();
        assert_eq!(in_order.and_then(Result::err), Some(NoReply::Overloaded));
        let mut renewal = Box::pin(proposer.propose(Command::Renew { sessions: Vec::new() }, patience));
        assert!(poll!(&mut renewal).is_pending());
        assert_eq!(proposer.queued(), fitting as u64 + 1);

        // Answered, or given up: the next one has its turn.
        drop(intake.proposals.recv().await);
        assert!(poll!(&mut calls).is_pending());
        assert_eq!(proposer.queued(), fitting as u64 + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_command_that_has_no_turn_in_time_is_refused_and_has_no_effect() {
    let patience = Duration::from_secs(60);
    let (proposer, _intake) = proposer_with_entries();
    let calls = (0..UNITS_UNDER_WAY_MAX / 16_016).map(|_| Box::pin(proposer.propose(delete_ranges(), 2 * patience)));
    let mut calls = join_all(calls);
    assert!(poll!(&mut calls).is_pending());

    let queued = proposer.queued();
    let refused = proposer.propose(delete_ranges(), patience).await;
    assert_eq!(refused.err(), Some(NoReply::Overloaded));
    assert_eq!(proposer.queued(), queued);
}
