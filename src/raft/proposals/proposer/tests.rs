//! Tests: which commands are refused, what a batch holds, and terms that are over.

use tokio::sync::watch;

use super::*;
use lockkeeper_machine::{
    AtLeaseEnd, Key, KeyRange, Label, Lease, NewSession, Put, PutLease, SessionId, Ttl, Txn, TxnOperation, Value,
};
use lockkeeper_table::{Batch, EntryId, codec::commands::encode_command};

fn open() -> Command {
    let label = Label::new("").expect("short");
    let ttl = Ttl::from_millis(1000).expect("in bounds");
    Command::Open { session: SessionId(1), ttl, label, address: None, owner: None }
}

#[tokio::test]
async fn commands_that_ask_for_more_are_refused_first() {
    let (proposer, mut intake) = Proposer::new(watch::channel(None).1, Arc::default(), ProposalLimits::REAL);
    let close = || Command::Close { session: SessionId(1), by: None, reason: None };
    let wait = |command: Command| Proposal {
        term: 1,
        is_in_order: false,
        command: encode_command(&command),
        units: 1,
        queued: Instant::now(),
        reply: oneshot::channel().0,
        growth: UnderWay::default().add(0),
        turn: CommandTurn::default(),
    };
    for _ in 0..QUEUE - RESERVED {
        assert!(proposer.admits(&open()) && proposer.admits(&close()));
        proposer.queue.try_send(wait(close())).expect("there is room");
    }
    assert!(!proposer.admits(&open()) && proposer.admits(&close()));
    intake.proposals.recv().await.expect("it waits");
    assert!(proposer.admits(&open()));
}

/// A queue of four with one reserved place, at its borders.
#[tokio::test]
async fn what_the_queue_refuses_is_not_proposed_later() {
    let leadership = Arc::new(TermLeadership::new(4, Stamp(0), Environment::system()));
    let limits = ProposalLimits { queue: 4, reserved: 1, ..ProposalLimits::REAL };
    let (proposer, mut intake) = Proposer::new(watch::channel(Some(leadership)).1, Arc::default(), limits);
    let patience = Duration::from_secs(60);
    let close = || Command::Close { session: SessionId(1), by: None, reason: None };

    let mut calls: Vec<_> = (0..3).map(|_| Box::pin(proposer.propose(open(), patience))).collect();
    for call in &mut calls {
        assert!(futures::poll!(call).is_pending());
    }
    assert_eq!(proposer.propose(open(), patience).await.err(), Some(NoReply::Overloaded));
    let mut last = Box::pin(proposer.propose(close(), patience));
    assert!(futures::poll!(&mut last).is_pending());
    assert_eq!(proposer.propose(close(), patience).await.err(), Some(NoReply::Overloaded));

    tokio::task::yield_now().await;
    let mut proposed = Vec::new();
    while let Some(Some((command, _))) = futures::FutureExt::now_or_never(intake.next()) {
        proposed.push(command);
        tokio::task::yield_now().await;
    }
    assert_eq!(proposed, [open(), open(), open(), close()]);
}

/// Clients of protocols that lock by writing renew and release by transactions.
#[tokio::test]
async fn what_a_transaction_does_to_the_table_decides_whether_it_is_refused_first() {
    let table = Arc::new(Table::default());
    let lease = |session| PutLease::Given(Lease { session, at_end: AtLeaseEnd::Keep });
    let txn = |then| Command::Txn(Txn::new(vec![], then, vec![]).expect("in bounds"));
    let put = |name: &str, lease| {
        let key = Key::new(name.as_bytes()).expect("short");
        TxnOperation::Put(Put { key, value: Value::default(), lease, claims: None })
    };
    let opens = |session| {
        let label = Label::new("").expect("short");
        let ttl = Ttl::from_millis(1000).expect("in bounds");
        TxnOperation::Open(NewSession { session, ttl, label, address: None, owner: None })
    };
    let holder = SessionId(1);
    let other = SessionId(2);
    let acquire = txn(vec![opens(holder), put("held", lease(holder))]);
    let entry = EntryId { term: 1, index: 1 };
    let time = Time::default();
    let limits = Limits::default();
    table.apply(entry, Batch { time, limits, commands: vec![acquire.clone()] }, false);

    let (proposer, _intake) = Proposer::new(watch::channel(None).1, table, ProposalLimits::REAL);
    for _ in 0..QUEUE - RESERVED {
        assert!(proposer.admits(&acquire));
        let (reply, _) = oneshot::channel();
        let growth = UnderWay::default().add(0);
        let proposal = Proposal {
            term: 1,
            is_in_order: false,
            command: encode_command(&Command::Tick),
            units: 1,
            queued: Instant::now(),
            reply,
            growth,
            turn: CommandTurn::default(),
        };
        proposer.queue.try_send(proposal).expect("there is room");
    }
    for goes_on in [put("held", PutLease::Renewed), put("held", lease(holder)), put("held", PutLease::None)] {
        assert!(proposer.admits(&txn(vec![goes_on])));
    }
    assert!(!proposer.admits(&txn(vec![opens(other), put("held", lease(other))])));
    assert!(!proposer.admits(&txn(vec![put("other", PutLease::None)])));
}

/// A command of a few bytes may visit thousands of entries.
#[tokio::test]
async fn a_batch_has_a_limit_of_work() {
    let (proposer, mut intake) = Proposer::new(watch::channel(None).1, Arc::default(), ProposalLimits::REAL);
    let mut callers = Vec::new();
    for units in [BATCH_UNITS / 2, BATCH_UNITS / 2, 1, 2 * BATCH_UNITS, 1] {
        let (reply, caller) = oneshot::channel();
        callers.push(caller);
        let growth = UnderWay::default().add(0);
        let command = encode_command(&open());
        let queued = Instant::now();
        let turn = CommandTurn::default();
        let proposal = Proposal { term: 1, is_in_order: false, command, units, queued, reply, growth, turn };
        proposer.queue.try_send(proposal).expect("there is room");
    }
    let mut over = None;
    for expected in [2, 1, 1, 1] {
        let batch = next_batch(&mut intake, &mut over).await.expect("some wait");
        assert_eq!(batch.len(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_small_batch_waits_for_the_one_in_flight_but_not_for_long() {
    let in_flight = Semaphore::new(IN_FLIGHT);
    let own = in_flight.acquire().await.expect("it is free");
    let goes_on = |commands| futures::FutureExt::now_or_never(give_way(&in_flight, commands, 8)).is_some();
    assert!(goes_on(1), "nothing is in flight");

    let other = in_flight.acquire().await.expect("it is free");
    assert!(goes_on(4) && !goes_on(3));
    let mut waits = Box::pin(give_way(&in_flight, 3, 8));
    assert!(futures::poll!(&mut waits).is_pending());
    drop(other);
    assert!(futures::poll!(&mut waits).is_ready());
    assert!(in_flight.try_acquire().is_ok(), "the other place is for a batch");

    let _other = in_flight.acquire().await.expect("it is free");
    let began = Instant::now();
    give_way(&in_flight, 3, 8).await;
    assert_eq!(began.elapsed(), BESIDE_WAIT);
    drop(own);
}

#[tokio::test]
async fn commands_of_a_term_that_is_over_are_refused() {
    let proposal = |term| {
        let (reply, answer) = oneshot::channel();
        let growth = UnderWay::default().add(0);
        let command = encode_command(&open());
        let queued = Instant::now();
        let turn = CommandTurn::default();
        (Proposal { term, is_in_order: false, command, units: 1, queued, reply, growth, turn }, answer)
    };
    let (proposals, answers): (Vec<_>, Vec<_>) = [2, 4, 2, 4].map(proposal).into_iter().unzip();
    let taken = in_term(4, proposals).expect("some are of this term");
    assert_eq!(taken.iter().map(|proposal| proposal.term).collect::<Vec<_>>(), [4, 4]);
    drop(taken);
    for (place, answer) in answers.into_iter().enumerate() {
        let refused = answer.await.ok().and_then(Result::err);
        assert_eq!(refused, (place % 2 == 0).then_some(NoReply::NotLeader));
    }
    assert!(in_term(4, vec![proposal(2).0]).is_none());
}

#[tokio::test]
async fn a_command_for_another_term_is_not_proposed() {
    let environment = Environment::system();
    let leadership = Arc::new(TermLeadership::new(4, Stamp(0), environment));
    let (_lead, led) = watch::channel(Some(leadership));
    let (proposer, mut intake) = Proposer::new(led, Arc::default(), ProposalLimits::REAL);
    let early = proposer.propose_in(Some(2), open(), Duration::from_secs(1)).await;
    assert_eq!(early.err(), Some(NoReply::NotLeader));
    let present = proposer.propose_in(Some(4), open(), Duration::ZERO).await;
    assert_eq!(present.err(), Some(NoReply::Unknown), "it waits in the queue");
    assert_eq!(intake.proposals.try_recv().map(|proposal| proposal.term), Ok(4));
}

/// What was proposed behind it would take effect without it.
#[tokio::test]
async fn a_command_in_an_order_stays_when_its_caller_goes_away() {
    let leadership = Arc::new(TermLeadership::new(4, Stamp(0), Environment::system()));
    let (_lead, led) = watch::channel(Some(leadership));
    let (proposer, mut intake) = Proposer::new(led, Arc::default(), ProposalLimits::REAL);
    for term in [None, Some(4), None] {
        let gone = proposer.propose_in(term, open(), Duration::ZERO).await;
        assert_eq!(gone.err(), Some(NoReply::Unknown));
    }
    let batch = next_batch(&mut intake, &mut None).await.expect("one has stayed");
    assert_eq!(batch.iter().map(|proposal| proposal.is_in_order).collect::<Vec<_>>(), [true]);
}

/// Ranges that are empty when they are judged have what is under way before them when they are applied.
#[tokio::test]
async fn what_is_under_way_counts_for_each_range() {
    const PUTS: usize = 200;
    const RANGES: usize = 8;
    let led = Arc::new(TermLeadership::new(1, Stamp(0), Environment::system()));
    let (proposer, mut intake) = Proposer::new(watch::channel(Some(led)).1, Arc::default(), ProposalLimits::REAL);
    let key = |number: usize| Key::new(format!("{number:05}").as_bytes()).expect("short");
    let put = |number| Put { key: key(number), value: Value::default(), lease: PutLease::None, claims: None };
    let txn = |then| Command::Txn(Txn::new(vec![], then, vec![]).expect("in bounds"));
    let puts = || txn((0..PUTS).map(|number| TxnOperation::Put(put(number))).collect());
    let ranges = || txn(vec![TxnOperation::DeleteRange(KeyRange { from: Some(key(0)), to: None }); RANGES]);

    let alone = proposer.cost(&ranges()).units;
    // Nobody answers: a caller waits until its command is withdrawn.
    let calls: Vec<_> = (0..3).map(|_| Box::pin(proposer.propose(puts(), Duration::from_secs(60)))).collect();
    let mut calls = futures::future::join_all(calls);
    assert!(futures::poll!(&mut calls).is_pending());
    assert_eq!(proposer.cost(&ranges()).units, alone + RANGES * 3 * PUTS);

    // Answered, or given up: its entries are in the table then, or never will be.
    drop(intake.proposals.recv().await);
    assert_eq!(proposer.cost(&ranges()).units, alone + RANGES * 2 * PUTS);
}
