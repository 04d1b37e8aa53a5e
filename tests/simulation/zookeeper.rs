//! ZooKeeper's clients in a simulated run: contenders for locks by kazoo's recipe, a queue of numbered ephemeral nodes, and by a plain
//! ephemeral node, at the nodes' real port for it.
//!
//! A client pings before a third of its session's timeout has passed. From the sending of a request that was answered on, it trusts its
//! session for two thirds, as kazoo does; of a connection that is closed it trusts nothing. It attaches its session at another node, looks
//! there for what it had under way, and goes on, or is told that the session is over.
//!
//! Beside the locks it judges what the port promises: the event of a watch comes before a reply that shows its change, and a session that
//! is told to be over has no node any more.

use std::time::Duration;

use rand::{Rng as _, rngs::StdRng};
use tokio::time::sleep;

use crate::{
    contenders::{Attempt, Contender, HeldLock, TTL},
    jute::{JuteAcl, JuteAnswer, JuteRequest, op},
    protocols::{ContendedProtocol, ContenderParts, contended_key},
    system,
    znode_session::{SessionKey, ZnodeSession},
};

/// For how long a client trusts its session.
pub(crate) const TRUST: Duration = Duration::from_millis(TTL.as_millis() as u64 * 2 / 3);
const LOCKS: u32 = 2;
/// For how long a client waits in a queue, and looks for a node that takes its session.
const PATIENCE: Duration = Duration::from_millis(2_500);
const SEARCH: Duration = Duration::from_secs(3);
/// Flags of a create.
const EPHEMERAL: i32 = 1;
const NUMBERED: i32 = 2;
/// Errors of replies.
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
/// Digits of the number of a node.
const DIGITS: usize = 10;

/// Contends until the run is over.
pub(crate) async fn contend(parts: ContenderParts) {
    let ContenderParts { seats, contender, random, finish } = parts;
    let mut client = ZookeeperClient { seats, random, contender, session: None, told: SessionKey::fresh(0) };
    while !finish.is_cancelled() {
        // A client that does not know what became of its nodes leaves them to the end of its session.
        if client.take_turn().await.is_none() {
            client.leave_session();
        }
        let pause = client.random.random_range(10..250);
        sleep(Duration::from_millis(pause)).await;
    }
}

/// The node by which a client has a lock, or a place in its queue.
struct OwnNode {
    path: String,
    /// Its token.
    created: u64,
}

/// What became of a create.
enum CreatedNode {
    Own(OwnNode),
    /// Another client has it.
    Taken,
    /// There is none of its own, and there will be none.
    Refused,
    /// Its session is over.
    Over,
}

/// A place in a queue.
#[derive(PartialEq, Eq)]
enum QueuedNode {
    First,
    Behind,
    Missing,
}

struct ZookeeperClient {
    seats: u64,
    random: StdRng,
    contender: Contender,
    session: Option<ZnodeSession>,
    /// Asks for a new session, and says what this client has seen.
    told: SessionKey,
}

impl ZookeeperClient {
    /// Holds a lock once, or finds that another one does. `None`: it does not know what became of its nodes, or leaves them.
    async fn take_turn(&mut self) -> Option<()> {
        if self.session.is_none() {
            self.begin().await?;
        }
        if self.random.random_range(0..100) < 30 {
            self.judge_order().await?;
        }
        if self.random.random_range(0..100) < 10 {
            self.judge_places().await?;
        }
        let number = self.random.random_range(0..LOCKS);
        let is_queue = self.random.random();
        let directory = if is_queue { format!("/queue-{number}") } else { "/plain".to_owned() };
        let lock = if is_queue { directory.clone() } else { format!("{directory}/{number}") };
        let attempt = self.contender.ask(&format!("zookeeper{lock}"));
        // A place in a queue has its token before it has the lock, and to the history a token is a grant.
        let attempt = if is_queue { attempt } else { attempt.recorded() };

        let name = if is_queue { format!("{}-", attempt.who().replace('/', "-")) } else { contended_key(number) };
        let flags = if is_queue { EPHEMERAL | NUMBERED } else { EPHEMERAL };
        let node = match self.create(&directory, &name, flags).await? {
            CreatedNode::Own(node) => node,
            CreatedNode::Taken => {
                attempt.busy();
                return Some(());
            }
            CreatedNode::Refused => {
                attempt.unavailable();
                return Some(());
            }
            CreatedNode::Over => return Some(()),
        };
        let held = if is_queue {
            self.wait_in_queue(&directory, &node, attempt).await?
        } else {
            Some(self.granted(attempt, &node)?)
        };
        match held {
            Some(held) => self.hold(held, &node).await,
            None => Some(()),
        }
    }

    /// Makes nodes of its own by requests that are sent together, and removes them so: they take effect in their order.
    async fn judge_order(&mut self) -> Option<()> {
        let session = self.session.as_mut()?;
        let paths: Vec<_> = (0..4).map(|number| format!("/plain/own-{:x}-{number}", session.key().id)).collect();
        let creates: Vec<_> = paths.iter().map(|path| create_with_stat(path.clone(), EPHEMERAL)).collect();
        let answers = session.call_all(&creates).await?;
        let created = |answer: &Result<JuteAnswer, i32>| match answer {
            Ok(JuteAnswer::PathStat(_, stat)) => Some(stat.created_at),
            Ok(_) | Err(_) => None,
        };
        let tokens: Vec<_> = answers.iter().filter_map(created).collect();
        if !tokens.is_sorted_by(|one, next| one < next) {
            let what =
                format!("requests that were sent together took effect in another order: {paths:?} at {tokens:?}");
            self.contender.contention().complain(what);
        }
        let deletes: Vec<_> = paths.iter().map(|path| JuteRequest::delete(path)).collect();
        session.call_all(&deletes).await.map(drop)
    }

    /// Takes several places of one queue by one transaction, and leaves them by another: their numbers rise, and one revision has them all.
    async fn judge_places(&mut self) -> Option<()> {
        let session = self.session.as_mut()?;
        let queue = format!("/queue-{}", self.random.random_range(0..LOCKS));
        let place = format!("{queue}/spare-{:x}-", session.key().id);
        let creates =
            (0..self.random.random_range(2..5)).map(|_| create_with_stat(place.clone(), EPHEMERAL | NUMBERED));
        let Ok(JuteAnswer::Parts(parts)) = session.call(&JuteRequest::Multi(creates.collect())).await? else {
            return Some(());
        };

        let taken = parts.iter().filter_map(|part| match part {
            Ok((_, JuteAnswer::PathStat(path, stat))) => Some((path.clone(), stat.created_at)),
            Ok(_) | Err(_) => None,
        });
        let taken: Vec<_> = taken.collect();
        let is_one = taken.iter().all(|(_, created)| *created == taken[0].1);
        // A part that failed has undone them all.
        if !taken.is_empty()
            && (taken.len() != parts.len() || !is_one || !taken.is_sorted_by(|one, next| one.0 < next.0))
        {
            self.contender.contention().complain(format!("places that were taken at once are not in order: {parts:?}"));
        }

        let deletes = taken.iter().map(|(path, _)| JuteRequest::delete(path));
        session.call(&JuteRequest::Multi(deletes.collect())).await.map(drop)
    }

    /// It has the lock, and trusts its session from its last answered request on.
    fn granted(&mut self, mut attempt: Attempt, node: &OwnNode) -> Option<HeldLock> {
        attempt.renewed(self.session.as_ref()?.answered());
        Some(attempt.granted(Some(node.created)))
    }

    async fn hold(&mut self, mut held: HeldLock, node: &OwnNode) -> Option<()> {
        for _ in 0..self.random.random_range(0..4) {
            self.work(&mut held).await;
            let seen = self.session.as_mut()?.call(&exists(&node.path, false)).await;
            match seen {
                Some(Ok(_)) => held.renewed(self.session.as_ref()?.answered()),
                Some(Err(NO_NODE)) => {
                    held.lost();
                    return Some(());
                }
                Some(Err(_)) | None => {
                    held.suspend();
                    if !self.go_on(Some(&node.path)).await? {
                        held.lost();
                        return Some(());
                    }
                    held.renewed(self.session.as_ref()?.answered());
                }
            }
        }

        // Some holders fall silent: their locks pass on when their sessions end.
        let way = self.random.random_range(0..100);
        if way >= 70 {
            return None;
        }
        let releasing = held.release();
        let session = self.session.as_mut()?;
        if way < 10 {
            if session.call(&JuteRequest::Close).await?.is_ok() {
                releasing.done();
            }
            return None;
        }
        match session.call(&JuteRequest::delete(&node.path)).await? {
            Ok(_) => releasing.done(),
            Err(NO_NODE) => releasing.was_lost(),
            Err(_) => return None,
        }
        Some(())
    }

    /// Works for a while. Some stand still meanwhile, for longer than their session, and go on as if they had the lock.
    async fn work(&mut self, held: &mut HeldLock) {
        if self.random.random_range(0..100) < 8 {
            let pause = self.random.random_range(1_500..3_500);
            sleep(Duration::from_millis(pause)).await;
        } else if let Some(session) = &mut self.session {
            let until = system::elapsed() + Duration::from_millis(self.random.random_range(20..1_200));
            // What follows finds out that the connection is over.
            let _ = session.idle(until, &mut self.random, &mut |sent| held.renewed(sent)).await;
        }
    }

    /// Waits until its node is the first one. `Some(None)`: it has given up its place, or lost it with its session.
    async fn wait_in_queue(
        &mut self,
        directory: &str,
        node: &OwnNode,
        mut attempt: Attempt,
    ) -> Option<Option<HeldLock>> {
        let until = system::elapsed() + PATIENCE;
        loop {
            match self.look_before(directory, node, until, &mut attempt).await {
                Some(QueuedNode::First) => return Some(Some(self.granted(attempt, node)?)),
                Some(QueuedNode::Behind) if system::elapsed() < until => {}
                Some(QueuedNode::Behind) => break,
                Some(QueuedNode::Missing) => return None,
                None => {
                    if !self.go_on(Some(&node.path)).await? {
                        return Some(None);
                    }
                }
            }
        }

        match self.session.as_mut()?.call(&JuteRequest::delete(&node.path)).await? {
            Ok(_) => attempt.timed_out(),
            Err(_) => return None,
        }
        Some(None)
    }

    /// Looks where its node is, and waits until the one before it is gone. `None`: the connection is over.
    async fn look_before(
        &mut self,
        directory: &str,
        node: &OwnNode,
        until: Duration,
        attempt: &mut Attempt,
    ) -> Option<QueuedNode> {
        let session = self.session.as_mut()?;
        drop(session.take_events());
        let children = JuteRequest::GetChildren { path: directory.to_owned(), watch: false };
        let Ok(JuteAnswer::Names(mut names)) = session.call(&children).await? else { return Some(QueuedNode::Missing) };
        attempt.renewed(session.answered());
        // Its name has no other request: it was told of one place, or found one.
        let own = &node.path[directory.len() + 1..node.path.len() - DIGITS];
        if names.iter().filter(|name| name.starts_with(own)).count() > 1 {
            let what = format!("{} has two places for one request: {names:?}", attempt.who());
            self.contender.contention().complain(what);
        }

        names.sort_by_key(|name| name[name.len().saturating_sub(DIGITS)..].to_owned());
        let place = names.iter().position(|name| format!("{directory}/{name}") == node.path);
        let Some(place) = place else { return Some(QueuedNode::Missing) };
        let Some(before) = place.checked_sub(1) else { return Some(QueuedNode::First) };

        let before = format!("{directory}/{}", names[before]);
        if session.call(&exists(&before, true)).await?.is_ok()
            && !session.idle(until, &mut self.random, &mut |sent| attempt.renewed(sent)).await?
            && session.call(&exists(&before, false)).await? == Err(NO_NODE)
            && session.take_events().is_empty()
        {
            let what = format!("{} was shown that {before} is gone before the event of its watch", attempt.who());
            self.contender.contention().complain(what);
        }
        Some(QueuedNode::Behind)
    }

    /// Creates a node of its own: one with this name, or one whose name begins so and ends with its number. `None`: it does not know.
    async fn create(&mut self, directory: &str, name: &str, flags: i32) -> Option<CreatedNode> {
        let create_path = format!("{directory}/{name}");
        let create = create_with_stat(create_path.clone(), flags);
        match self.session.as_mut()?.call(&create).await {
            Some(Ok(JuteAnswer::PathStat(path, stat))) => {
                let created = u64::try_from(stat.created_at).ok()?;
                Some(CreatedNode::Own(OwnNode { path, created }))
            }
            Some(Err(NODE_EXISTS)) => {
                self.judge_taken(&create_path).await?;
                Some(CreatedNode::Taken)
            }
            Some(Ok(_) | Err(_)) => Some(CreatedNode::Refused),
            None if self.go_on(None).await? => self.find(directory, name).await,
            None => Some(CreatedNode::Over),
        }
    }

    /// Another client has the node that it asked for. It must not be its own: one that it was told not to have, or has given back.
    async fn judge_taken(&mut self, path: &str) -> Option<()> {
        let session = self.session.as_mut()?;
        if let Ok(JuteAnswer::Stat(stat)) = session.call(&exists(path, false)).await?
            && stat.owner == session.key().id
        {
            self.contender
                .contention()
                .complain(format!("{path} belongs to a session whose client was told that it has no such node"));
        }
        Some(())
    }

    /// Looks for a node that it may have created. Its session is attached here: so what it asked for before has happened or never will.
    async fn find(&mut self, directory: &str, name: &str) -> Option<CreatedNode> {
        let session = self.session.as_mut()?;
        let children = JuteRequest::GetChildren { path: directory.to_owned(), watch: false };
        let JuteAnswer::Names(names) = session.call(&children).await?.ok()? else { return None };
        let Some(found) = names.iter().find(|found| found.starts_with(name)) else { return Some(CreatedNode::Refused) };
        let path = format!("{directory}/{found}");
        match session.call(&exists(&path, false)).await? {
            Ok(JuteAnswer::Stat(stat)) if stat.owner == session.key().id => {
                let created = u64::try_from(stat.created_at).ok()?;
                Some(CreatedNode::Own(OwnNode { path, created }))
            }
            Ok(_) | Err(_) => Some(CreatedNode::Refused),
        }
    }

    /// Opens a session, and makes the nodes above those of locks.
    async fn begin(&mut self) -> Option<()> {
        let address = self.some_address();
        let mut session = ZnodeSession::connect(&address, self.told.clone(), self.contender.contention()).await??;
        let queues = (0..LOCKS).map(|number| format!("/queue-{number}"));
        for path in queues.chain(["/plain".to_owned()]) {
            let made = session.call(&JuteRequest::create(&path, &[], 0)).await?;
            made.map_or_else(|error| (error == NODE_EXISTS).then_some(()), |_| Some(()))?;
        }
        self.session = Some(session);
        Some(())
    }

    /// Goes elsewhere with its session. Returns whether it lives; otherwise none of its nodes may be there any more. `None`: no node has
    /// answered.
    async fn go_on(&mut self, path: Option<&str>) -> Option<bool> {
        let key = self.session.as_ref()?.key().clone();
        let until = system::elapsed() + SEARCH;
        while system::elapsed() < until {
            let address = self.some_address();
            match ZnodeSession::connect(&address, key.clone(), self.contender.contention()).await {
                Some(Some(session)) => {
                    self.session = Some(session);
                    return Some(true);
                }
                Some(None) => {
                    self.leave_session();
                    self.judge_end(&address, key.id, path).await;
                    return Some(false);
                }
                None => sleep(Duration::from_millis(self.random.random_range(20..120))).await,
            }
        }
        None
    }

    /// A node has said that a session is over: it must not show a node of that any more.
    async fn judge_end(&mut self, address: &str, id: i64, path: Option<&str>) {
        let opened = ZnodeSession::connect(address, self.told.clone(), self.contender.contention()).await;
        let (Some(Some(mut session)), Some(path)) = (opened, path) else { return };
        if let Some(Ok(JuteAnswer::Stat(stat))) = session.call(&exists(path, false)).await
            && stat.owner == id
        {
            self.contender.contention().complain(format!("{path} is shown after the end of its session at {address}"));
        }
        self.session = Some(session);
    }

    /// Forgets its session, and not what it was told.
    fn leave_session(&mut self) {
        if let Some(session) = self.session.take() {
            self.told = session.key().forgotten();
        }
    }

    fn some_address(&mut self) -> String {
        ContendedProtocol::Zookeeper.seat_address(self.random.random_range(1..=self.seats))
    }
}

fn create_with_stat(path: String, flags: i32) -> JuteRequest {
    JuteRequest::Create { op: op::CREATE_2, path, data: None, acl: JuteAcl::open(), flags, ttl_ms: 0 }
}

fn exists(path: &str, watch: bool) -> JuteRequest {
    JuteRequest::Exists { path: path.to_owned(), watch }
}
