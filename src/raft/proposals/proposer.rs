//! Proposing commands: batches and group commit.
//!
//! One task drains a bounded queue. It closes a batch when the queue is empty, or the batch is large enough, by its commands, their bytes
//! or the work that they are; nothing lingers while no batch is in flight. Two can be, so that the disk and the peers have the next one,
//! but a small one waits for the other; meanwhile the queue fills, and the next batch is larger. A full queue refuses at once. Large
//! commands wait for a turn of their own before they are in the queue (see `under_way`). A batch is bound to the term of the leader that
//! stamped it.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use openraft::{
    errors::ClientWriteError,
    impls::ProgressResponder,
    raft::ClientWriteResult,
    type_config::alias::{OneshotReceiverOf, WriteResponderOf},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::{Instant, timeout},
};

use crate::{
    Raft,
    disk::DiskShortage,
    proposals::{
        last_look::{self, Unfit},
        leadership::{Led, TermLeadership},
        under_way::{CommandTurn, CommandTurns, Growth, LargeCommandLimits, UNITS_UNDER_WAY_MAX, UnderWay},
    },
    types::*,
};
use lockkeeper_environment::Environment;
use lockkeeper_machine::{Command, CommandWork, Limits, Stamp, Time, Version, WallTime};
use lockkeeper_metrics::{CommandStage, Metrics};
use lockkeeper_planted::{NodeLimit, Planted};
use lockkeeper_table::{Deliveries, Delivery, Table, Times, codec::commands};
use lockkeeper_transport::LogThrottle;

/// Capacity of the queue, in commands. When it is full, commands are refused.
pub const QUEUE: usize = 8192;
/// Load shedding: places that are reserved for releases, renewals and other commands that ask for nothing. They are admitted while
/// acquires, opens, updates and most transactions that put are refused. So an overloaded leader reduces its load, and no session expires
/// because of other clients' requests.
const RESERVED: usize = QUEUE / 4;
/// Maximum commands in one batch.
const BATCH_COMMANDS: usize = 2048;
/// Maximum bytes of the commands in one batch. A larger command makes a batch of its own. Batches get that large only under load, where the
/// fixed cost of a batch must not be the limit.
const BATCH_BYTES: usize = 256 * 1024;
/// Maximum units of work in one batch ([`lockkeeper_machine::Machine::cost`]): a few transactions that read large ranges, some hundreds
/// that read small ones. A command that costs more makes a batch of its own.
pub const BATCH_UNITS: usize = 32 * 1024;
/// Batches between the proposer and the table: one being written, and the next one filling. More of them would be smaller, and cost more
/// fsyncs for the same commands.
const IN_FLIGHT: usize = 2;
/// Beside another one, a batch has at least this part of the commands of the one before it. Each batch costs all nodes an entry, a sync and
/// some wake-ups, so the commands of a small one wait for the other, and those that come meanwhile join them.
const BESIDE_PART: usize = 2;
/// They wait for this long at most: the other may be held up by a slow disk, or by the loss of the quorum.
const BESIDE_WAIT: Duration = Duration::from_millis(5);
// Fewer would leave a batch in flight half empty while large commands wait for their turn.
const _: () = assert!(UNITS_UNDER_WAY_MAX == 2 * IN_FLIGHT * BATCH_UNITS);

/// The limits of a [`Proposer`]. Only a simulation has other ones than [`Self::REAL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProposalLimits {
    /// Commands in the queue.
    pub queue: usize,
    /// Places of the queue for commands that ask for nothing. Fewer than [`queue`](Self::queue).
    pub reserved: usize,
    /// Commands in one batch.
    pub batch_commands: usize,
    /// Bytes of the commands in one batch of several.
    pub batch_bytes: usize,
    /// Units of work of the commands in one batch of several.
    pub batch_units: usize,
    /// The limits for large commands.
    pub large: LargeCommandLimits,
}

impl ProposalLimits {
    /// The limits of every real node.
    pub const REAL: Self = Self {
        queue: QUEUE,
        reserved: RESERVED,
        batch_commands: BATCH_COMMANDS,
        batch_bytes: BATCH_BYTES,
        batch_units: BATCH_UNITS,
        large: LargeCommandLimits::REAL,
    };

    /// The limit that ends a batch of this number of commands before another one, with which it would have these bytes and units.
    fn batch_end(&self, commands: usize, bytes: usize, units: usize) -> Option<NodeLimit> {
        if commands >= self.batch_commands {
            Some(NodeLimit::BatchCommands)
        } else if bytes > self.batch_bytes {
            Some(NodeLimit::BatchBytes)
        } else if units > self.batch_units {
            Some(NodeLimit::BatchUnits)
        } else {
            None
        }
    }
}

impl Default for ProposalLimits {
    fn default() -> Self {
        Self::REAL
    }
}

/// Why a command got no reply from the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoReply {
    /// This node does not lead. The command had no effect.
    #[error("this node does not lead; send the request to the leader")]
    NotLeader,
    /// This node leads, but has not heard from a quorum for some time. The command had no effect.
    #[error("this node leads, but cannot reach a majority of the members; try again later")]
    NoQuorum,
    /// The queue is full. The command had no effect.
    #[error("this node is overloaded, its queue of commands is full; try again in a moment")]
    Overloaded,
    /// The command is newer than the cluster version: some member may not know it. It had no effect.
    #[error(
        "the cluster has version {has}, and the command needs version {needs}; try again when all members run a version that supports it"
    )]
    VersionTooLow {
        /// The version that the command needs.
        needs: Version,
        /// The cluster version.
        has: Version,
    },
    /// The disks of too many members are nearly full. The command had no effect.
    #[error("{0}")]
    DiskSpaceLow(DiskShortage),
    /// The command cannot be a part of the log. It had no effect.
    #[error("the command was refused before it was proposed: {0}")]
    Unfit(Unfit),
    /// No answer in time, or this node lost leadership. The command may still take effect.
    #[error("no answer in time; the request may still take effect")]
    Unknown,
}

struct Proposal {
    /// The term in which this node led when it was proposed.
    term: u64,
    /// Whether what was proposed after it in this term must not be in the log without it. Then it stays if its caller goes away.
    is_in_order: bool,
    /// The command as the entry will have it.
    command: Bytes,
    /// Units of work that it costs, as the table was when it was proposed, and with what was under way.
    units: usize,
    queued: Instant,
    reply: ReplySender<Delivery>,
    growth: Growth,
    turn: CommandTurn,
}

/// What a command costs, as the table is, and with what is under way.
struct ProposalCost {
    /// Units of work in its batch.
    units: usize,
    /// Units of work without what others may add to its ranges.
    present: usize,
}

/// Proposes commands to the log.
#[derive(Clone)]
pub struct Proposer {
    queue: mpsc::Sender<Proposal>,
    led: Led,
    /// Tells which commands ask for more.
    table: Arc<Table>,
    limits: ProposalLimits,
    under_way: UnderWay,
    turns: CommandTurns,
    /// Requests that were refused since the queue is full, or too many large ones wait.
    refused: Arc<LogThrottle>,
    /// Commands that cannot be a part of the log.
    unfit: Arc<LogThrottle>,
}

impl fmt::Debug for Proposer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proposer").field("queued", &self.queued()).finish_non_exhaustive()
    }
}

impl Proposer {
    pub(crate) fn new(led: Led, table: Arc<Table>, limits: ProposalLimits) -> (Self, ProposalQueue) {
        let (queue, proposals) = mpsc::channel(limits.queue);
        let under_way = UnderWay::default();
        let turns = CommandTurns::new(limits.large);
        let refused = Arc::default();
        let unfit = Arc::default();
        (Self { queue, led, table, limits, under_way, turns, refused, unfit }, ProposalQueue { proposals, limits })
    }

    /// Proposes a command and waits until it is applied, for at most `patience`. A large command waits for its turn for at most half of
    /// that, and is refused then.
    ///
    /// Dropping the future withdraws a command that is not in a batch yet; otherwise the command takes effect.
    pub fn propose(
        &self,
        command: Command,
        patience: Duration,
    ) -> impl Future<Output = Result<Delivery, NoReply>> + Send {
        self.propose_in(None, command, patience)
    }

    /// The same, but only while this node leads in this term, if one is given. Of the commands of a term that are proposed one after the
    /// other, each at the first poll, the log has all or the first ones, in their order, if none is proposed after one that was refused. So
    /// dropping the future withdraws none of these, and a large one is refused at once where it is not its turn.
    pub async fn propose_in(
        &self,
        term: Option<u64>,
        command: Command,
        mut patience: Duration,
    ) -> Result<Delivery, NoReply> {
        // The batch that takes the command must be of the same term.
        let mut leads_in = self.term_led()?;
        if term.is_some_and(|term| term != leads_in) {
            return Err(NoReply::NotLeader);
        }
        self.ensure_admitted(leads_in, &command)?;

        // Encoded on the caller's task: all commands of the node pass through the one task that makes the batches.
        let encoded = last_look::look(&command, &self.unfit).map_err(NoReply::Unfit)?;
        let mut cost = self.cost(&command);
        let load = self.turns.load(cost.present, encoded.len());
        let is_in_order = term.is_some();

        let turn = match self.turns.take(load) {
            Some(turn) => turn,
            // Those behind it are not to pass it.
            None if is_in_order => {
                NodeLimit::LargeInOrder.note();
                return Err(self.refuse_large());
            }
            None => {
                let began = Instant::now();
                let turn = timeout(patience / 2, self.turns.wait(load)).await;
                let turn = turn.ok().flatten().ok_or_else(|| self.refuse_large())?;
                patience = patience.saturating_sub(began.elapsed());

                // Others were applied meanwhile, and the leadership may be another one.
                leads_in = self.term_led()?;
                self.ensure_admitted(leads_in, &command)?;
                cost = self.cost(&command);
                turn
            }
        };

        let growth = self.under_way.add(command.growth());
        // From here on it is kept as the log has it, and not twice.
        drop(command);

        let units = cost.units;
        let proposal = |reply| {
            let queued = Instant::now();
            Proposal { term: leads_in, is_in_order, command: encoded, units, queued, reply, growth, turn }
        };
        let answer = ask(&self.queue, proposal, patience).await;
        // Whatever else refuses a command does so before it is in the queue.
        if matches!(answer, Err(NoReply::Overloaded)) {
            NodeLimit::Queue.note();
        }
        answer
    }

    fn term_led(&self) -> Result<u64, NoReply> {
        self.led.borrow().as_ref().map(|leadership| leadership.term).ok_or(NoReply::NotLeader)
    }

    fn ensure_admitted(&self, term: u64, command: &Command) -> Result<(), NoReply> {
        if self.admits(command) {
            return Ok(());
        }
        if Planted::RefusedIsProposed.is_on() {
            self.propose_refused(term, command);
        }
        Err(NoReply::Overloaded)
    }

    /// What [`Planted::RefusedIsProposed`] does.
    fn propose_refused(&self, term: u64, command: &Command) {
        let Ok(encoded) = last_look::look(command, &self.unfit) else { return };
        let proposal = Proposal {
            term,
            is_in_order: true,
            command: encoded,
            units: self.cost(command).units,
            queued: Instant::now(),
            reply: oneshot::channel().0,
            growth: self.under_way.add(command.growth()),
            turn: CommandTurn::default(),
        };
        let queue = self.queue.clone();
        tokio::spawn(async move { queue.send(proposal).await });
    }

    /// Refuses a large command that has waited too long for its turn, or has no place to wait.
    fn refuse_large(&self) -> NoReply {
        if let Some(count) = self.refused.count() {
            tracing::warn!(count, "requests were refused: large transactions have to wait for too many others");
        }
        NoReply::Overloaded
    }

    /// Entries of ranges are counted in a clone of the table: applying does not wait for it. Those that may come into the ranges until the
    /// command is applied count for each of them: all that is proposed now is applied before.
    fn cost(&self, command: &Command) -> ProposalCost {
        let Command::Txn(txn) = command else { return ProposalCost { units: command.units(), present: 0 } };
        if !txn.reads_ranges() {
            let units = command.units();
            return ProposalCost { units, present: units };
        }

        let machine = self.table.read(|applied| applied.machine.clone());
        let CommandWork { cost, present } = machine.work_for(command, BATCH_UNITS);
        let is_counted = !Planted::EntriesUnderWayUncounted.is_on();
        let growth = if is_counted { self.under_way.units().min(BATCH_UNITS) } else { 0 };
        ProposalCost { units: cost + command.ranges() * growth, present }
    }

    fn admits(&self, command: &Command) -> bool {
        // The table is read only while the queue is nearly full.
        !self.is_nearly_full() || !self.asks_for_more(command) || !self.is_overloaded()
    }

    /// Whether a command asks for something that the cluster then has to keep: see [`lockkeeper_machine::Machine::asks_for_more`].
    pub(crate) fn asks_for_more(&self, command: &Command) -> bool {
        self.table.read(|applied| applied.machine.asks_for_more(command))
    }

    fn is_nearly_full(&self) -> bool {
        self.queue.capacity() <= self.limits.reserved
    }

    /// The present cluster time, by the leader's clock. `None` if this node does not lead.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        let leadership = self.led.borrow().clone();
        leadership.map(|leadership| leadership.stamp())
    }

    /// Commands in the queue.
    pub(crate) fn queued(&self) -> u64 {
        (self.limits.queue - self.queue.capacity()) as u64
    }

    /// Whether [`propose`](Self::propose) refuses commands that ask for more, since the queue is nearly full. The caller then refuses a
    /// request, and that is logged at a limited rate.
    pub fn is_overloaded(&self) -> bool {
        let is_overloaded = self.is_nearly_full();
        if is_overloaded {
            NodeLimit::QueueReserved.note();
        }
        if is_overloaded && let Some(count) = self.refused.count() {
            tracing::warn!(count, queued = self.queued(), "requests were refused: the queue of commands is full");
        }
        is_overloaded
    }
}

/// The channel for the answer to a queued question.
pub(crate) type ReplySender<T> = oneshot::Sender<Result<T, NoReply>>;

/// Puts a question into a queue, at once or not at all, and waits for its answer, for at most `patience`.
pub(crate) async fn ask<Q, T>(
    queue: &mpsc::Sender<Q>,
    question: impl FnOnce(ReplySender<T>) -> Q,
    patience: Duration,
) -> Result<T, NoReply> {
    let (reply, answer) = oneshot::channel();
    queue.try_send(question(reply)).map_err(|refused| match refused {
        mpsc::error::TrySendError::Full(_) => NoReply::Overloaded,
        mpsc::error::TrySendError::Closed(_) => NoReply::NotLeader,
    })?;

    match timeout(patience, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => Err(NoReply::Unknown),
    }
}

/// The receiving end of a [`Proposer`]'s queue.
pub(crate) struct ProposalQueue {
    proposals: mpsc::Receiver<Proposal>,
    limits: ProposalLimits,
}

#[cfg(test)]
impl ProposalQueue {
    /// The next proposal, for tests with a log of their own.
    pub(crate) async fn next(&mut self) -> Option<(Command, ReplySender<Delivery>)> {
        let Proposal { command, reply, .. } = self.proposals.recv().await?;
        Some((commands::decode_command(command).expect("it was encoded here"), reply))
    }
}

/// Batches the proposals and gives them to openraft. Returns when the last proposer is gone, or openraft has stopped.
pub(crate) async fn run(mut intake: ProposalQueue, raft: Raft, led: Led, environment: Environment, limits: Limits) {
    let in_flight = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut first = None;
    let mut commands_before = 0;
    loop {
        // Acquired first: commands that arrive while all places are taken join the next batch.
        let permit = Arc::clone(&in_flight).acquire_owned().await.expect("the semaphore is never closed");
        if first.is_none() {
            first = intake.proposals.recv().await;
        }
        let waiting = usize::from(first.is_some()) + intake.proposals.len();
        give_way(&in_flight, waiting, commands_before).await;
        let Some(proposals) = next_batch(&mut intake, &mut first).await else { return };
        commands_before = proposals.len();

        let leadership = led.borrow().clone();
        let Some(leadership) = leadership else {
            refuse(proposals, NoReply::NotLeader);
            continue;
        };

        let Some(proposals) = in_term(leadership.term, proposals) else { continue };

        // One moment for the whole batch, taken when it is closed: its commands happen then, in the order of the queue.
        let time = time_of(&leadership, &environment);
        // The first one waited longest.
        if let Some(first) = proposals.first() {
            environment.metrics.took(CommandStage::Queue, first.queued.elapsed());
        }

        if submit(&raft, &leadership, time, limits, proposals, permit, environment.metrics.clone()).await.is_err() {
            return;
        }
    }
}

/// Waits for the other batch in flight, if so few commands wait that they are to join others. The caller has one of the places.
async fn give_way(in_flight: &Semaphore, commands: usize, commands_before: usize) {
    if commands * BESIDE_PART < commands_before {
        // The other places are all free once no other batch is in flight.
        let _ = timeout(BESIDE_WAIT, in_flight.acquire_many(IN_FLIGHT as u32 - 1)).await;
    }
}

/// The next batch: the queued commands, at least one, up to a batch's limits. `first` is the one that it begins with, if that was taken out
/// of the queue; afterwards it is the command that did not fit.
async fn next_batch(intake: &mut ProposalQueue, first: &mut Option<Proposal>) -> Option<Vec<Proposal>> {
    let ProposalQueue { proposals, limits } = intake;
    let mut batch = Vec::new();
    let mut bytes = 0;
    let mut units = 0;
    loop {
        let proposal = match first.take() {
            Some(proposal) => proposal,
            None if batch.is_empty() => proposals.recv().await?,
            None => match proposals.try_recv() {
                Ok(proposal) => proposal,
                Err(_) => return Some(batch),
            },
        };

        if proposal.reply.is_closed() && !proposal.is_in_order {
            // The caller has gone away before the command was sent, so the command is dropped.
            continue;
        }

        bytes += proposal.command.len();
        units += proposal.units;
        if !batch.is_empty()
            && let Some(limit) = limits.batch_end(batch.len(), bytes, units)
        {
            limit.note();
            *first = Some(proposal);
            return Some(batch);
        }

        batch.push(proposal);
    }
}

/// The proposals of a term. Proposals of an earlier term are refused. `None` if no proposal is left.
fn in_term(term: u64, mut proposals: Vec<Proposal>) -> Option<Vec<Proposal>> {
    // Proposals of another term are rare.
    if proposals.iter().any(|proposal| proposal.term != term) {
        let (present, earlier) = proposals.into_iter().partition(|proposal| proposal.term == term);
        refuse(earlier, NoReply::NotLeader);
        proposals = present;
    }
    (!proposals.is_empty()).then_some(proposals)
}

fn time_of(leadership: &TermLeadership, environment: &Environment) -> Time {
    let stamp = if Planted::StampFromCache.is_on() { leadership.last_stamp() } else { leadership.stamp() };
    Time { stamp, wall: WallTime(environment.clock.wall_ms()) }
}

async fn submit(
    raft: &Raft,
    leadership: &TermLeadership,
    time: Time,
    limits: Limits,
    proposals: Vec<Proposal>,
    permit: OwnedSemaphorePermit,
    metrics: Metrics,
) -> Result<(), ()> {
    metrics.batch(proposals.len());
    let began = Instant::now();

    let (commands, replies): (Vec<_>, Vec<_>) = proposals
        .into_iter()
        .map(|p| (p.command, WaitingCaller { queued: p.queued, reply: p.reply, growth: p.growth, _turn: p.turn }))
        .unzip();
    let mut encoded = commands::encode_batch(time, limits, commands);
    if Planted::EntryCutShort.is_on() && encoded.len().is_multiple_of(61) {
        encoded.truncate(encoded.len() - 1);
    }
    let payload = Payload(encoded);

    let (responder, response): (WriteResponderOf<TypeConfig>, _) = ProgressResponder::complete_only();
    let write = raft.write(payload).responder(responder);

    // The stamp is of this term's clock. A node that loses its leadership and wins it again may have a successor's later stamps in its log
    // by then.
    let submitted =
        if Planted::BatchOfEarlierTerm.is_on() { write.await } else { write.with_leader(leadership.term).await };

    // The next batch does not wait for this one: its outcome is told to the callers by a task.
    tokio::spawn(async move {
        let outcome = outcome(response).await;
        metrics.took(CommandStage::Commit, began.elapsed());
        // Before the replies: the next batch waits for the log, not for the callers of this one.
        drop(permit);
        let replying = metrics.start(CommandStage::Reply);
        answer(outcome, replies, began);
        replying.stop();
    });

    submitted.map_err(|fatal| tracing::error!(%fatal, "raft has stopped"))
}

/// A caller that waits for the reply to its command.
struct WaitingCaller {
    queued: Instant,
    reply: ReplySender<Delivery>,
    /// Given back when the caller is answered.
    growth: Growth,
    /// The same.
    _turn: CommandTurn,
}

/// What became of a batch: the index of its entry, and the deliveries of its commands, in their order.
async fn outcome(
    response: OneshotReceiverOf<TypeConfig, ClientWriteResult<TypeConfig>>,
) -> Result<(u64, Deliveries), NoReply> {
    match response.await {
        Ok(Ok(response)) => Ok((response.log_id.index, response.data)),
        // Never appended, so safe to retry.
        Ok(Err(ClientWriteError::ForwardToLeader(_) | ClientWriteError::PreconditionFailed(_))) => {
            Err(NoReply::NotLeader)
        }
        Ok(Err(ClientWriteError::LogEntryDiscarded(_) | ClientWriteError::ChangeMembershipError(_))) | Err(_) => {
            Err(NoReply::Unknown)
        }
    }
}

/// Sends the replies of one batch, which was given to Raft at that moment, to the callers.
fn answer(outcome: Result<(u64, Deliveries), NoReply>, callers: Vec<WaitingCaller>, proposed: Instant) {
    match outcome {
        Ok((log_index, Deliveries { replies, applied })) => {
            assert_eq!(replies.len(), callers.len(), "otherwise a caller would get the reply to another's command");
            for (WaitingCaller { queued, reply, growth, _turn }, delivery) in callers.into_iter().zip(replies) {
                let times =
                    applied.map(|(committed, applied)| Times { queued, proposed, committed, applied, log_index });
                // An error means that the caller is gone.
                let _ = reply.send(Ok(Delivery { times, ..delivery }));
                drop(growth);
            }
        }
        Err(no_reply) => callers.into_iter().for_each(|caller| {
            let _ = caller.reply.send(Err(no_reply));
        }),
    }
}

fn refuse(proposals: Vec<Proposal>, why: NoReply) {
    for proposal in proposals {
        let _ = proposal.reply.send(Err(why));
    }
}

#[cfg(test)]
mod large_commands;

#[cfg(test)]
mod tests;
