//! At the end of a run the whole cluster is lost, and restored from a backup; so again, from the same backup.
//!
//! A holder has a lock that the backup knows, and another that it was granted after the backup: it trusts both, and no restored cluster may
//! grant them before its deadline. What is granted then has tokens that no cluster before has issued. The properties that are judged across
//! a loss are in `lockkeeper::chaos::checker`.
//!
//! The contenders of other protocols live through it too: what the backup knows of their locks is older than what they know.
//!
//! At the last time one node starts on what it has: an operator forgot to give it the data of the new cluster. It must not come in.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use lockkeeper::{
    chaos::{
        history::Fact,
        run::{LEFT_TTL, RunOperator},
    },
    client::{Client, Error},
    machine::{Restore, WallTime},
    raft::{
        backup::{BackupFile, Founding, NewCluster},
        types::log_id,
    },
    table::{Applied, MemberNode},
};
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::time::{Instant, sleep};

use crate::{
    clients,
    contenders::Contention,
    faults::{Order, World},
    network,
    protocols::ContendedProtocol,
    rights::RightsClientProcess,
    signals::SignalsClientProcess,
    system,
};

/// How often the cluster is lost.
pub(crate) const TIMES: usize = 2;
/// Time limit of what the operator asks of the cluster.
const BOUND: Duration = Duration::from_secs(20);
/// The longest TTL that a session in the backup may have.
const TTL_MAX: Duration = Duration::from_secs(10);
/// For how long contenders take locks before the backup, and at the end.
const CONTENDED: Duration = Duration::from_millis(1_200);
/// For how long they go on after the backup, before the cluster is lost, milliseconds: also for longer than a lease that the backup knows.
const UNSAVED_MS: (u64, u64) = (100, 3_000);
/// The pause after an error.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// From the kill of the nodes to the start of the new ones, milliseconds: shorter than the holder trusts its locks.
const LOST_MS: (u64, u64) = (50, 500);
/// The fewest members of which one can be left out: the others are a majority.
const MEMBERS_MIN: usize = 3;

/// Who lives through the losses.
pub(crate) struct Survivors<'a> {
    /// A client that reaches no cluster while it `is_cut_off`.
    pub(crate) holder: &'a RunOperator,
    pub(crate) is_cut_off: &'a AtomicBool,
    /// By the protocols of others.
    pub(crate) contention: &'a Contention,
}

impl World {
    /// Loses the cluster and restores it, some times. Fails if a restored cluster does not serve.
    pub(crate) async fn lose_and_restore(&mut self, survivors: &Survivors<'_>) -> Result<(), String> {
        let Survivors { holder, is_cut_off, contention } = *survivors;
        let operator = self.operator.clone();
        self.end_other_clients().await?;
        contenders().for_each(|host| self.order(Order::Start(host)));
        sleep(CONTENDED).await;

        let by = Instant::now() + BOUND;
        let held = holder.hold("left/saved", by).await;
        let mut held = held.ok_or("no lock was granted before the backup")?;
        let saved = operator.save_backup(by).await.map_err(|error| format!("no backup was saved: {error}"))?;

        let cut_at = self.random.random_range(1..=TIMES);
        for time in 1..=TIMES {
            // The backup lacks it.
            let granted = holder.hold_also(&mut held, &format!("left/unsaved/{time}")).await;
            granted.map_err(|error| format!("no lock was granted after the backup: {error}"))?;

            // One that reaches the new cluster learns that its session is unknown; one that does not trusts its locks until its deadline.
            is_cut_off.store(time == cut_at, Ordering::Relaxed);
            let unsaved_for = self.some_ms(UNSAVED_MS.0, UNSAVED_MS.1);
            sleep(unsaved_for).await;
            let closed_for = self.lose(&saved, time, contention).await?;
            let by = Instant::now() + closed_for + BOUND;
            if !operator.take_over_from(&held, by).await {
                return Err(format!("cluster {time} from the backup did not grant all locks of the one that was lost"));
            }
            is_cut_off.store(false, Ordering::Relaxed);
            held = holder.hold(&format!("left/next/{time}"), by).await.ok_or("a restored cluster grants nothing")?;
        }

        sleep(CONTENDED).await;
        Ok(())
    }

    /// Ends the contenders, which have lived through all losses.
    pub(crate) fn end_contenders(&mut self) {
        contenders().for_each(|host| self.order(Order::Crash(host)));
        self.heal();
    }

    /// Ends those that have not ended yet, since they know nothing of restores, and their long sessions: a restored cluster grants nothing
    /// for the longest TTL in the backup.
    async fn end_other_clients(&self) -> Result<(), String> {
        let further = [RightsClientProcess::HOST, SignalsClientProcess::HOST].map(str::to_owned);
        self.clients().into_iter().chain(further).for_each(|host| self.order(Order::Crash(host)));

        let client = clients::client(self.plan.nodes, self.plan.seed ^ 0x7e57).map_err(|error| error.to_string())?;
        let by = Instant::now() + BOUND;
        loop {
            match close_long_sessions(&client).await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= by => return Err(format!("long sessions were not closed: {error}")),
                Err(_) => sleep(AFTER_ERROR).await,
            }
        }
    }

    /// Destroys all members with their data and starts a cluster from the backup. Returns for how long that grants nothing.
    async fn lose(&mut self, saved: &[u8], time: usize, contention: &Contention) -> Result<Duration, String> {
        self.recorder.fact(Fact::Fault { name: "restore".to_owned(), nodes: self.members.clone(), silent: Vec::new() });
        self.kill_all();
        let lost_for = self.some_ms(LOST_MS.0, LOST_MS.1);
        sleep(lost_for).await;

        let closed_for =
            self.make_anew(saved, time).map_err(|error| format!("the backup cannot be restored: {error}"))?;
        self.observer.forget_terms();
        self.recorder.fact(Fact::Restored);
        contention.restored();
        self.start_all();
        Ok(closed_for)
    }

    fn make_anew(&mut self, saved: &[u8], time: usize) -> Result<Duration, Box<dyn std::error::Error>> {
        let nodes: Vec<_> = self.members.iter().copied().filter(|node| !self.dead.contains(node)).collect();
        let path = self.site(nodes[0]).directory().join("backup");
        fs::write(&path, saved)?;
        let BackupFile { applied, .. } = BackupFile::read(&path)?;
        // It is of the first cluster, each time.
        self.site(nodes[0]).note_copy(time, 0, &applied);
        let cluster = new_cluster(&applied, &format!("restored-{time}"), &nodes, &mut self.random)?;

        let is_last = time == TIMES && nodes.len() >= MEMBERS_MIN;
        let late = nodes.choose(&mut self.random).copied().filter(|_| is_last);
        let founding = Founding::draw(&cluster, &mut self.random)?;
        for (node, identity) in cluster.members.keys().zip(founding.identities_in_memory()) {
            let is_late = late == Some(*node);
            self.site(*node).refound(&founding, identity, time, self.plan.sync_ms, is_late)?;
            self.lost.extend(Some(*node).filter(|_| is_late));
        }

        Ok(Duration::from_millis(cluster.machine.closed_for_ms().unwrap_or_default()))
    }
}

/// The hosts of the contenders.
fn contenders() -> impl Iterator<Item = String> {
    ContendedProtocol::ALL.into_iter().map(|protocol| protocol.name().to_owned())
}

/// A cluster of these nodes that is made of a copy now. It grants nothing for as long as the holder trusts its locks.
pub(crate) fn new_cluster(
    copy: &Applied,
    cluster_id: &str,
    nodes: &[u64],
    random: &mut StdRng,
) -> Result<NewCluster, Box<dyn std::error::Error>> {
    let member = |node: u64| {
        let peer_address = network::peer_address(node);
        let client_address = network::client_address(node);
        // Its data are not files, but for the snapshot.
        (node, (MemberNode { peer_address, client_address, ..MemberNode::default() }, PathBuf::new()))
    };
    let members: BTreeMap<_, _> = nodes.iter().copied().map(member).collect();

    let at = WallTime(system::wall_ms());
    let closed_ms = u64::try_from(LEFT_TTL.as_millis())?;
    let restore = Restore { at, draw: random.random(), first_token: None, closed_ms: Some(closed_ms) };
    Ok(NewCluster {
        cluster_id: cluster_id.parse()?,
        members,
        machine: copy.machine.restored(&restore)?,
        trail: copy.trail,
        copied: copy.last_entry.map(log_id),
        at,
    })
}

async fn close_long_sessions(client: &Client) -> Result<(), Error> {
    let mut page_token = String::new();
    loop {
        let page = client.sessions(&page_token).await?;
        for session in page.sessions.into_iter().filter(|session| session.ttl > TTL_MAX) {
            match client.close_session(session.session_id, "its client has ended").await {
                Ok(()) | Err(Error::Lost(_)) => {}
                Err(error) => return Err(error),
            }
        }
        match page.next_page_token {
            Some(next) => page_token = next,
            None => return Ok(()),
        }
    }
}
