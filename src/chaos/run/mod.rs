//! A run: a cluster of real processes on this machine, clients that use it, fault injection, and the history of all
//! this.
//!
//! ```text
//! DIR/history.jsonl    the history: see `lockkeeper::chaos::history`
//! DIR/nodes/node1/…    the nodes' data, configurations and logs
//! DIR/audit/node-1/…   their audit files
//! DIR/clients.log      stderr of the clients
//! ```
//!
//! * Beside this, `parties` has the client processes, the observer of the nodes, the operator, and the bystander.
//! * `sentinel`, `retried_request` and `forced` set up state that must survive each fault, `left_held` a holder whose cluster is lost.
//!   `two_leaders` has a deposed leader that does not know of its successor, `churn` short-lived locks, and `late_retry` requests that are
//!   repeated when their leases are over.
//! * `earlier` asks a second program for its version, `founding` founds the cluster, and `ending` upgrades all nodes at the end and
//!   verifies the audit trail.
//! * `merge` merges the parts of the history, and [`activity`] says whether there was enough activity.
//!
//! A run gives no verdict: [`super::checker`] does, and can repeat it from the file. A run reports only what made it
//! fail as a run: a fault that was not possible, a node that exited by itself, a cluster that did not recover.
//!
//! All processes end with the run, even if its future is dropped or its process is killed.

pub mod activity;
mod churn;
mod earlier;
mod ending;
mod forced;
mod founding;
mod late_retry;
mod left_held;
mod merge;
mod retried_request;
mod sentinel;
mod two_leaders;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::PathBuf,
    time::Duration,
};

use rand::{SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use lockkeeper_client as client;
use lockkeeper_local::{self, LocalError, NodeProgram};

use self::founding::RoutedCluster;
pub use self::{
    left_held::{LEFT_TTL, LeftHeld},
    retried_request::RetriedRequest,
    sentinel::Sentinel,
    two_leaders::TwoLeaders,
};
pub use super::parties::{observe::Observer, operator::RunOperator};
use super::{
    dial::Dial,
    history::{Fact, Meta},
    nemesis::{Fault, ProgramStarts, Schedule, inject::World, turns::NodePrograms},
    parties::{
        EXPIRY_BOUND_MS, HANDOVER_BOUND_MS, LIVENESS_BOUND, LIVENESS_BOUND_MS,
        bystander::{Bystander, RENEWAL_BOUND_MS},
        clients::{self, Clients, Setting},
        programs::Programs,
    },
    record::{HistoryClock, Recorder},
    workload::resource::Resource,
};

/// Time before each fault. It is long enough for the locks of a dead client to be granted to others.
const CALM: Duration = Duration::from_millis(2_500);
/// The unit of stamps, which are whole milliseconds.
const STAMP_NS: u64 = 1_000_000;
/// Time limit of the search for all nodes at one index while clients work.
const COMPARE: Duration = Duration::from_millis(1_500);
const COMPARE_AT_END: Duration = Duration::from_secs(10);
/// The fault at the end of each run.
const RESTART: &str = "restart-at-rest";
/// Time limit of the wait for a snapshot before the restart at the end.
const SNAPSHOT_BOUND: Duration = Duration::from_secs(10);
/// A run ends before all faults were injected if the machine is slower than expected by more than this factor.
const SLOWNESS_MAX: u32 = 4;
/// The exit code of a node that cannot apply an entry, and what its log says then before the entry.
const UNAPPLIED: i32 = 23;
const REFUSED_ENTRY: &str = "log entry ";
/// Interval of progress reports.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// The options of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The program `lockkeeper`. Nodes and clients are processes of it.
    pub program: PathBuf,
    /// A program of an earlier version, which nodes run by turns until the end. It founds the cluster.
    pub earlier: Option<NodeProgram>,
    /// Number of nodes, 3 or more.
    pub nodes: usize,
    /// Duration of the faults, without the time before and after.
    pub duration: Duration,
    /// Seed of the order of faults and of the clients' operations. Their results also depend on the machine.
    pub seed: u64,
    /// The faults.
    pub faults: Vec<Fault>,
    /// Number of client processes.
    pub clients: usize,
    /// Whether all processes speak TLS, with certificates of the run's own.
    pub tls: bool,
    /// Whether the nodes write an audit trail, which is verified at the end. With one, a node whose table differs from that of the others
    /// ends.
    pub audit: bool,
    /// Programs of the user's own, which use the cluster at the same time: commands for `sh -c`. Their environment has the settings that
    /// the help of `lockkeeper chaos run` lists.
    pub programs: Vec<String>,
    /// The directory for all files. It must not exist yet.
    pub directory: PathBuf,
}

/// The progress of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunProgress {
    /// The current phase.
    pub phase: String,
    /// Time since the first fault was possible.
    pub elapsed: Duration,
    /// Number of operations begun.
    pub operations: u64,
    /// Number of acquires granted.
    pub grants: u64,
    /// Number of elections seen.
    pub elections: usize,
    /// The leader, if it is known.
    pub leader: Option<u64>,
    /// Number of faults that were tried and are over.
    pub faults_over: u32,
    /// Number of faults that are planned. There may be more of them at the end, if they were fast.
    pub faults_planned: u32,
}

/// The result of a completed run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The file of the history.
    pub history: PathBuf,
    /// Errors that the history does not show: a node that exited by itself or did not recover.
    pub troubles: Vec<String>,
    /// Planned faults without a target.
    pub missed: Vec<Fault>,
    /// Number of times that each fault was tried and had no effect.
    pub without_effect: BTreeMap<Fault, u32>,
    /// Chosen faults that were not possible, with the reason.
    pub skipped: Vec<(Fault, String)>,
    /// Chosen faults for which there was no time.
    pub not_reached: Vec<Fault>,
    /// How often each program was started, in a run with two versions of the program.
    pub starts: Option<ProgramStarts>,
    /// The cluster version after the upgrade at the end, if there was one.
    pub raised_to: Option<u32>,
    /// Number of lines of the audit trail, which is sound.
    pub audit_lines: u64,
    /// Number of writes that a fenced register refused because of old tokens.
    pub refused_writes: u64,
    /// Number of late writes that an unfenced register accepted. Each overwrote a newer write.
    pub late_writes: u64,
}

/// The reason why there was no run. No process is left.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The directory, or a file in it, cannot be used.
    #[error("{}: {source}", path.display())]
    Directory {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The second program cannot take turns with the first one. Nothing was started.
    #[error("the earlier program {}: {why}", program.display())]
    Earlier {
        /// Its path.
        program: PathBuf,
        /// The reason.
        why: String,
    },
    /// The cluster did not start.
    #[error(transparent)]
    Cluster(#[from] LocalError),
    /// The runner's own client failed.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// A process or a file failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Executes a run. When `stop` is cancelled, it ends early: faults are healed, clients finish, and the history is
/// complete.
pub async fn run(
    options: RunOptions,
    progress: watch::Sender<RunProgress>,
    stop: CancellationToken,
) -> Result<Outcome, RunError> {
    let newest = NodeProgram { path: options.program.clone(), environment: Vec::new() };
    let earlier = match &options.earlier {
        Some(program) => Some(earlier::ask(&newest, program).await?),
        None => None,
    };
    let programs = NodePrograms::new(newest, earlier, 1..=options.nodes as u64);

    let directory = &options.directory;
    fs::create_dir(directory).map_err(|source| RunError::Directory { path: directory.clone(), source })?;
    let mut run = ChaosRun::prepare(&options, programs, progress, stop).await?;
    let worked = run.inject_faults(&options).await;
    if let Err(error) = worked {
        run.outcome.troubles.push(error.to_string());
    }
    run.upgrade().await;
    run.close(&options).await
}

/// Where a run is.
#[derive(Debug, Default)]
struct Phase {
    name: String,
    faults_over: u32,
    faults_planned: u32,
}

struct ChaosRun {
    world: World,
    programs: Programs,
    bystander: Bystander,
    resource: Resource,
    parts: tempfile::TempDir,
    _sockets: tempfile::TempDir,
    stop: CancellationToken,
    phase: watch::Sender<Phase>,
    _telling: Telling,
    outcome: Outcome,
}

impl ChaosRun {
    async fn prepare(
        options: &RunOptions,
        node_programs: NodePrograms,
        progress: watch::Sender<RunProgress>,
        stop: CancellationToken,
    ) -> Result<Self, RunError> {
        let phase = watch::Sender::new(Phase { name: "starting".to_owned(), ..Phase::default() });
        progress.send_modify(|progress| progress.phase.clone_from(&phase.borrow().name));
        let timeline = HistoryClock::begin();
        // The parts lie on the disk of the history. The socket lies elsewhere, because its path must be short.
        let parts = tempfile::Builder::new().prefix("parts-").tempdir_in(&options.directory)?;
        let recorder = |name: &str| Recorder::create(&clients::part(parts.path(), name), name, timeline);
        let nemesis = recorder("nemesis")?;

        let mut founded = founding::start(options, node_programs, &nemesis).await?;
        let surroundings = founded.surroundings(options, parts.path(), timeline)?;
        let RoutedCluster { cluster, links, tools, node_programs, trail, roster } = founded;
        let endpoints = surroundings.endpoints.clone();
        let dial = Dial::new(cluster.client_files())?;
        let observer = Observer::for_cluster(&cluster, dial.clone(), recorder("observer")?);

        let sockets = tempfile::tempdir()?;
        let socket = sockets.path().join("resource");
        let resource = Resource::serve(&socket)?;
        let operator = RunOperator::for_cluster(&dial, &endpoints, &socket, recorder("operator")?)?;

        // The bystander reaches the nodes directly: only what no client could survive may end its session.
        let direct = cluster.nodes().map(|node| node.config().client_listen.clone()).collect::<Vec<_>>().join(",");
        let bystander = Bystander::start(RunOperator::for_cluster(&dial, &direct, &socket, recorder("bystander")?)?);
        let programs = Programs::start(&options.programs, &surroundings)?;
        let setting = Setting {
            program: options.program.clone(),
            endpoints,
            dial: dial.clone(),
            socket,
            parts: parts.path().to_owned(),
            log: options.directory.join("clients.log"),
            timeline,
            seed: options.seed,
        };
        let clients = Clients::start(setting, options.clients, nemesis.clone())?;

        let world = World {
            cluster,
            dial,
            links,
            clients,
            observer,
            operator,
            recorder: nemesis,
            tools,
            node_programs,
            trail,
            random: StdRng::seed_from_u64(options.seed),
            traces: Vec::new(),
            may_end: Vec::new(),
            set_aside: Vec::new(),
            roster,
            closed_for: Duration::ZERO,
            operation: None,
            stop: stop.clone(),
        };
        let outcome = Outcome { history: options.directory.join("history.jsonl"), ..Outcome::default() };
        let telling = tell(&world, timeline, &phase, progress);
        Ok(Self {
            world,
            programs,
            bystander,
            resource,
            parts,
            _sockets: sockets,
            stop,
            phase,
            _telling: telling,
            outcome,
        })
    }

    /// Injects one fault after another until the time is over and the planned faults were injected.
    async fn inject_faults(&mut self, options: &RunOptions) -> io::Result<()> {
        let began = Instant::now();
        let mut schedule = self.schedule(options);
        let planned = schedule.within(options.duration);
        let planned_count = u32::try_from(planned.len()).unwrap_or(u32::MAX);
        self.phase.send_modify(|phase| phase.faults_planned = planned_count);

        let operator = self.world.operator.clone();
        let _reading = operator.read_and_revoke(options.seed);
        let finish = CancellationToken::new();
        let churning = operator.churn(finish.clone());
        let nodes = self.world.cluster.nodes().filter_map(|node| node.config().client_listen.parse().ok()).collect();
        let retrying = operator.retry_late(self.world.dial.clone(), nodes, options.seed, finish.clone());

        let mut tried = 0_u32;
        let mut fired = BTreeSet::new();

        while self.goes_on() && began.elapsed() < options.duration * SLOWNESS_MAX {
            if began.elapsed() >= options.duration && tried as usize >= planned.len() {
                break;
            }

            self.set_phase("calm");
            let Some(fault) = schedule.next() else { break };

            // A restored cluster is closed for the longest TTL in its backup. The sentinel's and the request's are long, and would not
            // survive anyway.
            let survive = !fault.makes_anew();
            let sentinel = if survive { operator.set_up_sentinel(tried).await } else { None };

            self.calm().await?;
            if !self.goes_on() {
                break;
            }

            let late = format!("retried/{tried}/late");
            let late = if survive { operator.request_before(&late).await } else { None };

            tried += 1;
            let companion = schedule.companion(fault);

            let is_possible = match self.world.first(fault) {
                Some(first) => !self.inject_fault(first, None).await?.is_empty() && self.end_fault(first, None).await,
                None => true,
            };

            let injected = if is_possible { self.inject_fault(fault, companion).await? } else { Vec::new() };
            if !injected.contains(&fault) {
                *self.outcome.without_effect.entry(fault).or_default() += 1;
            }

            // A companion that lacked a target is not healed either.
            let companion = companion.filter(|companion| injected.contains(companion));
            fired.extend(injected);
            self.recover(fault, companion, late, sentinel).await;
            self.phase.send_modify(|phase| phase.faults_over = tried);
        }

        finish.cancel();
        let _ = tokio::join!(churning, retrying);

        // An interrupted run has not missed its planned faults.
        if !self.stop.is_cancelled() {
            self.outcome.missed = planned.into_iter().filter(|fault| !fired.contains(fault)).collect();
        }

        let missed = &self.outcome.missed;
        let skipped = &self.outcome.skipped;
        let is_out = |fault: &Fault| missed.contains(fault) || skipped.iter().any(|(skipped, _)| skipped == fault);
        let not_reached = options.faults.iter().filter(|fault| !fired.contains(fault) && !is_out(fault));
        self.outcome.not_reached = not_reached.copied().collect();
        Ok(())
    }

    /// The order of the faults that are possible on this machine.
    fn schedule(&mut self, options: &RunOptions) -> Schedule {
        let missing = |fault: &Fault| Some((*fault, self.world.tools.missing(*fault)?.to_owned()));
        self.outcome.skipped = options.faults.iter().filter_map(missing).collect();
        let possible = options.faults.iter().filter(|fault| self.world.tools.missing(**fault).is_none());
        Schedule::new(&possible.copied().collect::<Vec<_>>(), options.seed)
    }

    fn goes_on(&self) -> bool {
        !self.stop.is_cancelled() && self.outcome.troubles.is_empty()
    }

    /// Kills a client that holds a lock. Its locks must be granted to others.
    async fn calm(&mut self) -> io::Result<()> {
        let until = Instant::now() + CALM;
        let held = self.world.kill_a_holder().await?;
        let (all, ()) = tokio::select! {
            done = async { tokio::join!(self.world.operator.wait_for_all(&held), sleep_until(until)) } => done,
            () = self.stop.cancelled() => (true, ()),
        };
        if !all {
            self.outcome.troubles.push("after a client was killed, not all of its locks became available".to_owned());
        }
        Ok(())
    }

    async fn inject_fault(&mut self, fault: Fault, companion: Option<Fault>) -> io::Result<Vec<Fault>> {
        match companion {
            Some(companion) => self.set_phase(&format!("{fault} + {companion}")),
            None => self.set_phase(fault.name()),
        }
        self.world.inject_together(fault, companion).await
    }

    /// Ends the fault and its companion. A request must have taken effect then.
    async fn end_fault(&mut self, fault: Fault, companion: Option<Fault>) -> bool {
        let healed = self.world.heal().await.map_err(|error| error.to_string());
        let healed = healed.inspect(|()| {
            let name = companion.map(|companion| companion.name().to_owned());
            name.into_iter().for_each(|name| self.world.recorder.fact(Fact::Heal { name: Some(name) }));
        });

        let ended = match healed {
            Ok(()) if fault.makes_anew() => self.world.opens().await,
            Ok(()) => self.world.settle().await,
            failed @ Err(_) => failed,
        };

        match ended {
            Ok(()) => self.world.recorder.fact(Fact::Heal { name: Some(fault.name().to_owned()) }),
            Err(ref error) => self.outcome.troubles.push(format!("after {fault}{}: {error}", with(companion))),
        }
        ended.is_ok()
    }

    /// Ends the fault and checks that the cluster recovers.
    async fn recover(
        &mut self,
        fault: Fault,
        companion: Option<Fault>,
        late: Option<RetriedRequest>,
        sentinel: Option<Sentinel>,
    ) {
        self.set_phase("healing");
        if !self.end_fault(fault, companion).await {
            return;
        }

        let by = Instant::now() + LIVENESS_BOUND;
        if let Err(error) = self.world.cluster.ready(LIVENESS_BOUND).await {
            note_refusal(&error, &self.world.recorder);
            return self.outcome.troubles.push(format!("after {fault}: {error}"));
        }
        if let Err(error) = self.world.keeps_version().await {
            return self.outcome.troubles.push(format!("after {fault}: {error}"));
        }
        let operator = &self.world.operator;

        // No session survives a restore.
        let survives = !fault.makes_anew();
        if let Some(late) = late.filter(|_| survives) {
            operator.retry(late, by).await;
        }
        if let Some(sentinel) = sentinel.filter(|_| survives)
            && !operator.check_sentinel(sentinel).await
        {
            return self.outcome.troubles.push(format!("after {fault}, not all waiters were served"));
        }

        if !operator.probe(by).await {
            let bound = LIVENESS_BOUND.as_secs();
            return self.outcome.troubles.push(format!("after {fault}, not all locks were served within {bound} s"));
        }

        self.world.observer.compare_tables(Instant::now() + COMPARE).await;
        self.outcome.troubles.extend(self.world.clients.exited_client());
    }

    /// Lets all processes finish, and merges the history.
    async fn close(mut self, options: &RunOptions) -> Result<Outcome, RunError> {
        self.set_phase("finishing");

        if let Err(error) = self.world.heal().await {
            self.outcome.troubles.push(error.to_string());
        }

        // The run may have been interrupted during a fault.
        self.world.recorder.fact(Fact::Heal { name: None });

        let by = Instant::now() + clients::FINISH;
        let (client_troubles, program_troubles) = tokio::join!(self.world.clients.finish(by), self.programs.finish(by));
        self.outcome.troubles.extend(client_troubles.into_iter().chain(program_troubles));

        match self.world.cluster.ready(LIVENESS_BOUND).await {
            Err(error) => {
                note_refusal(&error, &self.world.recorder);
                self.outcome.troubles.push(error.to_string());
            }
            Ok(()) => {
                if self.goes_on() {
                    self.restart_at_rest().await;
                }
                self.world.operator.read_all().await;
                if !self.world.observer.compare_tables(Instant::now() + COMPARE_AT_END).await {
                    self.outcome.troubles.push("without load, not all nodes reached the same index".to_owned());
                }
            }
        }

        self.bystander.finish().await;
        self.world.recorder.fact(Fact::End);
        if let Some(error) = self.world.recorder.failure() {
            self.outcome.troubles.push(format!("the history is incomplete: {error}"));
        }

        let Self {
            world: World { cluster, links, observer, clients, node_programs, trail, .. },
            resource,
            mut parts,
            mut outcome,
            stop,
            ..
        } = self;
        outcome.refused_writes = resource.refused();
        outcome.late_writes = resource.late();

        drop((observer, clients));
        ending::stop_and_verify(cluster, trail.as_ref(), &node_programs, &stop, &mut outcome).await;
        drop(links);

        let left_out = merge::merge(parts.path(), meta(options.seed), &outcome.history)
            .inspect_err(|_| parts.disable_cleanup(true))?;
        if !left_out.is_empty() {
            // Keep them for the person who corrects the program.
            parts.disable_cleanup(true);
        }
        outcome.troubles.extend(left_out);
        Ok(outcome)
    }

    /// Restarts all nodes from snapshots without clients, to check that snapshots also keep state beyond grants.
    async fn restart_at_rest(&mut self) {
        let World { observer, operator, .. } = &self.world;
        // Not every fault has a holder that must be told.
        let forced = operator.acquire_and_force("forced/at-rest").await;

        let index = observer.applied_index();
        let by = Instant::now() + SNAPSHOT_BOUND;
        operator.renew_until(by, async || observer.snapshots_reach(index)).await;

        let nodes = self.world.cluster.nodes().map(lockkeeper_local::LocalNode::id).collect();
        self.world.recorder.fact(Fact::Fault { name: RESTART.to_owned(), nodes, silent: Vec::new() });
        let restarted = self.world.restart_all().await;
        self.world.recorder.fact(Fact::Heal { name: Some(RESTART.to_owned()) });

        let by = Instant::now() + LIVENESS_BOUND;
        if let Err(error) = restarted {
            self.outcome.troubles.push(format!("restart without load: {error}"));
        } else if let Err(error) = self.world.cluster.ready(LIVENESS_BOUND).await {
            self.outcome.troubles.push(format!("after a {RESTART}: {error}"));
        } else if !self.world.operator.probe(by).await {
            self.outcome.troubles.push(format!("after a {RESTART}, not all locks were served"));
        } else if let Some(forced) = forced {
            self.world.operator.renew_until_told(forced, by).await;
        }
    }

    fn set_phase(&self, phase: &str) {
        self.phase.send_modify(|shown| shown.name = phase.to_owned());
    }
}

/// The text for the companion of a fault.
fn with(companion: Option<Fault>) -> String {
    companion.map_or_else(String::new, |companion| format!(" with {companion}"))
}

/// Reports the progress until it is dropped.
fn tell(
    world: &World,
    timeline: HistoryClock,
    phase: &watch::Sender<Phase>,
    progress: watch::Sender<RunProgress>,
) -> Telling {
    let observations = world.observer.observations();
    let totals = world.clients.totals();
    let mut phase = phase.subscribe();

    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let (operations, grants) = totals.get();
            let (name, faults_over, faults_planned) = {
                let phase = phase.borrow_and_update();
                (phase.name.clone(), phase.faults_over, phase.faults_planned)
            };
            progress.send_replace(RunProgress {
                phase: name,
                faults_over,
                faults_planned,
                elapsed: Duration::from_nanos(timeline.now_ns()),
                operations,
                grants,
                elections: observations.elections(),
                leader: observations.leader(),
            });

            if let Ok(Err(_)) = timeout(TELL_EVERY, phase.changed()).await {
                return;
            }
        }
    }))
}

type Telling = AbortOnDropHandle<()>;

/// Records that a node ended because it could not apply an entry, if that is the error.
fn note_refusal(error: &LocalError, recorder: &Recorder) {
    if let LocalError::Died { node_id, status, tail, .. } = error
        && status.code() == Some(UNAPPLIED)
    {
        // Its log names the entry by term, leader and index. If it does not, the index is not known, and stays 0.
        let entry = tail.rsplit_once(REFUSED_ENTRY).map_or("", |(_, rest)| rest.split(' ').next().unwrap_or_default());
        let digits = entry.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        let index = digits.parse().unwrap_or_default();
        let why = tail.lines().find(|line| line.contains(REFUSED_ENTRY)).unwrap_or_default().to_owned();
        recorder.fact(Fact::RefusedEntry { node: *node_id, index, why });
    }
}

fn meta(seed: u64) -> Meta {
    Meta {
        seed: Some(seed),
        stamp_ns: STAMP_NS,
        expiry_bound_ms: Some(EXPIRY_BOUND_MS),
        handover_bound_ms: Some(HANDOVER_BOUND_MS),
        liveness_bound_ms: Some(LIVENESS_BOUND_MS),
        renewal_bound_ms: Some(RENEWAL_BOUND_MS),
        // Programs of the user's own may watch. What a node lacks after a fault it has by the time at which all nodes must be ready.
        watch_bound_ms: Some(LIVENESS_BOUND_MS),
        ..Meta::new()
    }
}
