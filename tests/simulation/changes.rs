//! Changes of the membership: an operator adds, promotes, removes and replaces nodes and transfers the leadership, by the real requests,
//! while other faults strike.
//!
//! A change begins before the faults of its cycle and must be complete soon after they end. Ids are never used again. A node that joins
//! has a host of its own, which begins to exist with the change; a node that was removed must end by itself.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::Duration,
};

use lockkeeper::{
    chaos::history::Fact,
    client::{Client, Error, NewMember},
    proto::v1::{Member, Role, StatusRequest, StatusResponse, cluster_client::ClusterClient},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _, seq::SliceRandom as _};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;

use crate::{
    clients,
    faults::{Order, World},
    network,
    node::JoinedCluster,
};

/// The bounds of the number of members.
const MEMBERS_MAX: usize = 5;
/// Probability of a change in a cycle, percent.
const CHANGES: u32 = 75;
/// Deadline of the search for a learner.
const LEARNER_WAIT: Duration = Duration::from_secs(3);
/// Between two requests.
const PAUSE: Duration = Duration::from_millis(100);
/// Timeout of a question to one node.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Time for the leader of a status to report that all of its log is committed.
const COMMIT_TIME: Duration = Duration::from_secs(1);

/// The kinds of changes, as they are counted.
pub(crate) const KINDS: [&str; 5] = ["added", "promoted", "removed", "replaced", "transferred"];

/// The requests of these changes, by their names in the service.
pub(crate) const REQUESTS: [&str; 5] =
    ["add_member", "promote_member", "remove_member", "replace_member", "transfer_leader"];

/// A change to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A node joins by itself.
    Add,
    /// An operator adds a node as a learner and promotes it later.
    Promote,
    Remove,
    /// A node takes the place of another one, whose machine is lost or not.
    Replace {
        lost: bool,
    },
    Transfer,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Add,
        Self::Promote,
        Self::Remove,
        Self::Replace { lost: true },
        Self::Replace { lost: false },
        Self::Transfer,
    ];

    /// The name in the history.
    fn name(self) -> &'static str {
        match self {
            Self::Add => "member-add",
            Self::Promote => "member-promote",
            Self::Remove => "member-remove",
            Self::Replace { lost: true } => "member-replace-lost",
            Self::Replace { lost: false } => "member-replace",
            Self::Transfer => "leader-transfer",
        }
    }

    fn counted_as(self) -> &'static str {
        match self {
            Self::Add => "added",
            Self::Promote => "promoted",
            Self::Remove => "removed",
            Self::Replace { .. } => "replaced",
            Self::Transfer => "transferred",
        }
    }

    /// Whether the cluster keeps a sensible size.
    fn fits(self, members: usize, usually: usize, random: &mut StdRng) -> bool {
        match self {
            Self::Add | Self::Promote => members < MEMBERS_MAX && (members <= usually || random.random_bool(0.2)),
            Self::Remove => members > usually.min(3) || members > 1 && random.random_bool(0.3),
            // Without the lost node, the others must still be a majority. The only voter cannot be replaced.
            Self::Replace { lost } => members > if lost { 2 } else { 1 },
            Self::Transfer => members > 1,
        }
    }
}

/// A change that is under way.
pub(crate) struct Change {
    kind: Kind,
    pub(crate) old: Option<u64>,
    pub(crate) new: Option<u64>,
    /// Whether the new node is a learner that waits for its promotion.
    is_learner: Rc<Cell<bool>>,
    /// The last reason why it was not complete.
    problem: Rc<RefCell<String>>,
    task: AbortOnDropHandle<()>,
}

/// The changes to come, and those made.
#[derive(Default)]
pub(crate) struct Changes {
    deck: Vec<Kind>,
    pub(crate) current: Option<Change>,
    /// By kind.
    pub(crate) made: Rc<RefCell<BTreeMap<&'static str, u64>>>,
    /// Nodes that were removed and must end.
    removed: Vec<u64>,
}

impl World {
    /// Begins a change, in most cycles.
    pub(crate) async fn begin_change(&mut self, client: &Client) {
        if self.random.random_range(0..100) >= CHANGES {
            return;
        }
        let Some(kind) = self.next_kind() else { return };
        self.recorder.fact(Fact::Fault { name: kind.name().to_owned(), nodes: Vec::new(), silent: Vec::new() });
        let members = self.members.clone();
        let old = match kind {
            Kind::Remove | Kind::Replace { .. } => {
                if self.random.random_bool(0.4) {
                    Some(self.leader().await).filter(|leader| members.contains(leader))
                } else {
                    members.choose(&mut self.random).copied()
                }
            }
            Kind::Add | Kind::Promote | Kind::Transfer => None,
        };
        let old =
            old.or_else(|| members.first().copied().filter(|_| matches!(kind, Kind::Remove | Kind::Replace { .. })));
        let new = match kind {
            Kind::Add | Kind::Promote | Kind::Replace { .. } => Some(self.sites.borrow().len() as u64 + 1),
            Kind::Remove | Kind::Transfer => None,
        };
        if let Some(old) = old {
            self.site(old).will_be_removed();
            if kind == (Kind::Replace { lost: true }) {
                self.kill(old);
                self.dead.insert(old);
            }
        }
        if let Some(new) = new {
            // It may lead before the change is complete.
            self.operator.insert(new, channel(new));
        }
        let problem = Rc::new(RefCell::new("it was not begun".to_owned()));
        let is_learner = Rc::new(Cell::new(false));
        let making = Making {
            kind,
            old,
            new,
            client: client.clone(),
            channels: members.iter().copied().chain(new).map(|node| (node, channel(node))).collect(),
            through: members
                .iter()
                .filter(|node| Some(**node) != old)
                .map(|node| network::client_address(*node))
                .collect(),
            orders: Rc::clone(&self.orders),
            problem: Rc::clone(&problem),
            is_learner: Rc::clone(&is_learner),
            random: StdRng::seed_from_u64(self.random.random()),
        };
        let task = AbortOnDropHandle::new(tokio::task::spawn_local(making.make()));
        self.changes.current = Some(Change { kind, old, new, is_learner, problem, task });
    }

    fn next_kind(&mut self) -> Option<Kind> {
        let (members, usually) = (self.members.len(), self.plan.nodes as usize);
        if self.changes.deck.len() < Kind::ALL.len() {
            let mut kinds = Kind::ALL;
            kinds.shuffle(&mut self.random);
            drop(self.changes.deck.splice(0..0, kinds));
        }
        let random = &mut self.random;
        let place = self.changes.deck.iter().rposition(|kind| kind.fits(members, usually, random))?;
        Some(self.changes.deck.remove(place))
    }

    /// The learner that an operator will promote, as soon as there is one; `None`: there is none in time.
    pub(crate) async fn learner(&self) -> Option<u64> {
        let change = self.changes.current.as_ref().filter(|change| change.kind == Kind::Promote)?;
        let by = Instant::now() + LEARNER_WAIT;
        while !change.is_learner.get() && Instant::now() < by {
            sleep(PAUSE).await;
        }
        change.new.filter(|_| change.is_learner.get())
    }

    /// Whether an operator adds a learner now.
    pub(crate) fn adds_learner(&self) -> bool {
        self.changes.current.as_ref().is_some_and(|change| change.kind == Kind::Promote)
    }

    /// Waits until the change is complete, if one is under way. Fails if it is not by then.
    pub(crate) async fn settle_change(&mut self, by: Instant) -> Result<(), String> {
        let Some(Change { kind, old, new, problem, task, .. }) = self.changes.current.take() else { return Ok(()) };
        if timeout_at(by, task).await.is_err() {
            return Err(format!(
                "{} (old: {old:?}, new: {new:?}) was not completed: {}",
                kind.name(),
                problem.borrow()
            ));
        }
        *self.changes.made.borrow_mut().entry(kind.counted_as()).or_default() += 1;
        if let Some(new) = new {
            self.members.push(new);
            self.observer.insert(new, channel(new));
            self.operator.insert(new, channel(new));
            self.recorder.fact(Fact::Joined { node: new });
        }
        if let Some(old) = old {
            self.members.retain(|member| *member != old);
            self.observer.forget(old);
            self.operator.forget(old);
            self.recorder.fact(Fact::Removed { node: old });
            if !self.dead.contains(&old) {
                self.changes.removed.push(old);
            }
        }
        network::seat(&self.members);
        self.recorder.fact(Fact::Heal { name: Some(kind.name().to_owned()) });
        Ok(())
    }

    /// Waits until the nodes that were removed have ended by themselves. Returns those that have not by then.
    pub(crate) async fn removed_have_ended(&self, by: Instant) -> Vec<u64> {
        loop {
            let removed = self.changes.removed.iter().copied();
            let running: Vec<u64> = removed.filter(|node| !self.site(*node).has_ended()).collect();
            if running.is_empty() || Instant::now() >= by {
                return running;
            }
            sleep(PAUSE).await;
        }
    }
}

/// A channel to a node.
pub(crate) fn channel(node: u64) -> Channel {
    clients::channel(&network::client_address(node))
}

/// The operator's part in a change.
struct Making {
    kind: Kind,
    old: Option<u64>,
    new: Option<u64>,
    client: Client,
    channels: BTreeMap<u64, Channel>,
    /// Where a new node asks to be added.
    through: Vec<String>,
    orders: Rc<RefCell<Vec<Order>>>,
    problem: Rc<RefCell<String>>,
    is_learner: Rc<Cell<bool>>,
    random: StdRng,
}

impl Making {
    async fn make(mut self) {
        self.pause(1_500).await;
        let (old, new) = (self.old.unwrap_or_default(), self.new.unwrap_or_default());
        match self.kind {
            Kind::Add => self.admit(self.through.clone()),
            Kind::Promote => {
                self.admit(Vec::new());
                let member = NewMember {
                    node_id: new,
                    client_address: network::client_address(new),
                    peer_address: network::peer_address(new),
                    stays_learner: true,
                };
                self.repeat(async |client: &Client| client.add_member(&member).await, |members| is_in(members, new))
                    .await;
                self.is_learner.set(true);
                self.pause(4_000).await;
                self.repeat(async |client: &Client| client.promote_member(new).await, |members| is_voter(members, new))
                    .await;
            }
            Kind::Remove => {
                self.repeat(async |client: &Client| client.remove_member(old).await, |members| !is_in(members, old))
                    .await;
            }
            Kind::Replace { .. } => {
                let marks_first = self.random.random_bool(0.5);
                if !marks_first {
                    self.admit(self.through.clone());
                    self.until(|members| is_in(members, new)).await;
                }
                let with = (!marks_first).then_some(new);
                let replace = async |client: &Client| client.replace_member(old, with).await;
                self.repeat(replace, |members| !is_in(members, old)).await;
                if marks_first {
                    self.admit(self.through.clone());
                }
            }
            Kind::Transfer => {
                let to: Option<u64> =
                    self.channels.keys().copied().collect::<Vec<_>>().choose(&mut self.random).copied();
                let to = to.filter(|_| self.random.random_bool(0.7));
                self.repeat(async |client: &Client| client.transfer_leader(to).await.map(drop), |_| false).await;
            }
        }
        let is_complete = |members: &[Member]| {
            self.new.is_none_or(|new| is_voter(members, new)) && self.old.is_none_or(|old| !is_in(members, old))
        };
        self.until(is_complete).await;
    }

    async fn pause(&mut self, most_ms: u64) {
        sleep(Duration::from_millis(self.random.random_range(0..most_ms))).await;
    }

    /// Starts the new node.
    fn admit(&self, through: Vec<String>) {
        let node = self.new.expect("this kind of change has a new node");
        self.orders.borrow_mut().push(Order::Admit { node, cluster: JoinedCluster::first(through) });
    }

    /// Repeats a request until it succeeds, or the members show that an earlier one did.
    async fn repeat(&self, request: impl AsyncFn(&Client) -> Result<(), Error>, is_done: impl Fn(&[Member]) -> bool) {
        loop {
            match request(&self.client).await {
                Ok(()) => return,
                Err(error) => *self.problem.borrow_mut() = error.to_string(),
            }
            if self.shows(&is_done).await {
                return;
            }
            sleep(PAUSE).await;
        }
    }

    async fn until(&self, is_done: impl Fn(&[Member]) -> bool) {
        while !self.shows(&is_done).await {
            sleep(PAUSE).await;
        }
    }

    /// Whether a leader has committed a membership like this. Its status alone does not say so: the membership may be from an entry that
    /// another leader will overwrite. So the same leader must report later, in the same term, that all it had then is committed.
    async fn shows(&self, is_done: &impl Fn(&[Member]) -> bool) -> bool {
        for channel in self.channels.values() {
            let Some(first) = status(channel).await.filter(leads) else { continue };
            if !is_done(&first.members) {
                *self.problem.borrow_mut() =
                    format!("node {} has the members {:?}", first.node_id, shown(&first.members));
                continue;
            }
            let by = Instant::now() + COMMIT_TIME;
            while Instant::now() < by {
                let now = status(channel).await.filter(|now| leads(now) && now.term == first.term);
                match now {
                    Some(now) if !is_done(&now.members) => break,
                    Some(now) if now.committed_index >= first.last_log_index => return true,
                    Some(_) => sleep(PAUSE / 5).await,
                    None => break,
                }
            }
        }
        false
    }
}

/// What a node says of itself, if it answers.
pub(crate) async fn status(channel: &Channel) -> Option<StatusResponse> {
    let mut service = ClusterClient::new(channel.clone());
    let answer = timeout(ANSWER_TIMEOUT, service.status(StatusRequest::default())).await;
    Some(answer.ok()?.ok()?.into_inner())
}

/// Whether a node leads, as it says.
pub(crate) fn leads(status: &StatusResponse) -> bool {
    status.role() == Role::Leader && status.serving
}

fn is_in(members: &[Member], node: u64) -> bool {
    members.iter().any(|member| member.node_id == node)
}

/// Whether the members, as a node knows them, have this voter.
pub(crate) fn is_voter(members: &[Member], node: u64) -> bool {
    members.iter().any(|member| member.node_id == node && member.voter)
}

/// The members and their kinds, for people.
fn shown(members: &[Member]) -> Vec<String> {
    let kind = |member: &Member| match (member.voter, member.is_leaving) {
        (true, true) => "leaves",
        (true, false) => "votes",
        (false, _) if member.stays_learner => "stays a learner",
        (false, _) => "learns",
    };
    members.iter().map(|member| format!("{} {}", member.node_id, kind(member))).collect()
}
