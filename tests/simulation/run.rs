//! One run: a cluster, its clients, the director of the faults, and the verdict.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize},
    },
    time::Duration,
};

use lockkeeper::{
    chaos::{
        checker::{self, Finding, Property, Verdict},
        history::{Event, Fact, History, Meta, What, Writer},
        report::{About, Report as Told, Summary},
        run::activity,
        workload::resource::Registers,
    },
    machine::TXN_READS_MAX,
    planted::planted,
    raft::proposals::proposer::BATCH_UNITS,
};
use lockkeeper_audit::Sink;
use rand::{SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use turmoil::Sim;

use crate::{
    changes::KINDS,
    child::Report,
    clients::{Book, Clients, Desk},
    contenders::Contention,
    director::{DIRECTOR, Director, LIVENESS_BOUND},
    faults::{Order, Sites},
    greed::GreedyClientProcess,
    hostile,
    keyspace::{judge::Judge, writer::KeyspaceClientProcess},
    log::Disk,
    network::{self, Gates},
    node::{Ledger, Origin, Site},
    plan::Plan,
    process::Process,
    protocols::{ContendedProtocol, ContendingProcess},
    requests::RequestsClientProcess,
    rights::{RightsClientProcess, RightsJudge},
    signals::{SignalsClientProcess, SignalsJudge},
    system,
    tally::{self, Tally},
    trace,
    trail::{TrailFindings, TrailPlace},
};

/// One step of the network and the hosts. The minimal message latency is not shorter: so no message arrives before its cause.
const TICK: Duration = Duration::from_millis(1);
/// Allowed delays of expiries and hand-overs: the same as in runs against real processes.
const EXPIRY_BOUND_MS: u64 = 8_000;
const HANDOVER_BOUND_MS: u64 = 8_000;
/// Error of time stamps: the cluster's time has whole milliseconds, the history's has ticks.
const STAMP_NS: u64 = 3_000_000 + CLOCKS_NS;
/// By how much a clock that is 1 % faster ends the longest leases of callers earlier, which do not allow for it as the library does.
const CLOCKS_NS: u64 = 24_000_000;
/// Units of work of one entry at the most: twice those of a batch of the proposer, since a read of a range may be planned twice, and one
/// command beyond it, which may read, compare and delete as much as a transaction may.
const UNITS_MAX: u64 = 2 * BATCH_UNITS as u64 + 4 * TXN_READS_MAX as u64;
/// What a node says of an entry that it cannot apply, before the entry.
const REFUSED_ENTRY: &str = "log entry ";
/// A simulation that lasts longer hangs.
const LONGEST: Duration = Duration::from_secs(600);
/// Most messages in flight on one connection.
const TCP_CAPACITY: usize = 4_096;

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The history as lines of JSON.
    pub(crate) history: Vec<u8>,
    /// Failures: violated properties, or errors that broke the run off.
    pub(crate) troubles: Vec<String>,
    /// The names of the properties that are violated, each with the protocol if it is about the holders of one.
    pub(crate) violated: Vec<String>,
    /// Activity that is missing: with any, the run is vacuous.
    pub(crate) missing: Vec<String>,
    pub(crate) summary: Summary,
    pub(crate) simulated: Duration,
    /// Entries applied; snapshots installed; writes lost in crashes; writes refused by fences; late writes accepted without a fence;
    /// changes of the membership by kind; recoveries of a lost majority; what the clients of the keyspace saw; what was verified of the
    /// audit trails.
    pub(crate) counts: Vec<(String, u64)>,
}

impl Outcome {
    /// The summary for the parent process.
    pub(crate) fn report(&self) -> Report {
        let summary = &self.summary;
        let seen = [
            ("operations", summary.operations.iter().map(|count| count.invoked).sum()),
            ("grants", summary.grants),
            ("hand-overs", summary.hand_overs),
            ("expiries", summary.expiries),
            ("elections", summary.elections),
            ("nodes killed", summary.nodes_killed),
            ("clients killed", summary.clients_killed),
            ("faults", summary.faults.iter().map(|fault| fault.times).sum()),
        ];
        let seen = seen.into_iter().map(|(what, count)| (what.to_owned(), count as u64));
        let counts = seen.chain(self.counts.iter().cloned()).collect();
        Report {
            troubles: self.troubles.clone(),
            violated: self.violated.clone(),
            missing: self.missing.clone(),
            simulated_ms: u64::try_from(self.simulated.as_millis()).expect("no simulation takes centuries"),
            counts,
        }
    }
}

/// Runs a plan, on a thread that has [`system::enter`]ed its seed, with the nodes' files in this empty directory.
pub(crate) fn run(plan: Plan, directory: &Path) -> std::io::Result<Outcome> {
    trace::say("plan", format_args!("{plan:?}"));
    plan.scarcity.capacity.simulate();
    Sink::simulate();
    let mut stage = Stage::set(plan, directory)?;
    let ended = stage.play();
    stage.judge(ended)
}

/// All parts of a run.
struct Stage {
    plan: Plan,
    sim: Sim<'static>,
    directory: PathBuf,
    sites: Sites,
    changes: Rc<RefCell<BTreeMap<&'static str, u64>>>,
    processes: BTreeMap<u64, Process>,
    /// Decides in which order the processes run.
    random: StdRng,
    ledger: Arc<Ledger>,
    gates: Gates,
    orders: Rc<RefCell<Vec<Order>>>,
    troubles: Rc<RefCell<Vec<String>>>,
    book: Book,
    registers: Arc<Registers>,
    keyspace: Arc<Judge>,
    contention: Arc<Contention>,
    rights: Arc<RightsJudge>,
    signals: Arc<SignalsJudge>,
}

impl Stage {
    fn set(plan: Plan, directory: &Path) -> std::io::Result<Self> {
        let mut builder = turmoil::Builder::new();
        builder
            .tick_duration(TICK)
            .simulation_duration(LONGEST)
            .min_message_latency(plan.latency.0)
            .max_message_latency(plan.latency.1)
            .ephemeral_ports(10_000..=65_000)
            .tcp_capacity(TCP_CAPACITY)
            .rng_seed(plan.seed)
            .fail_rate(0.0)
            .repair_rate(0.01)
            .enable_random_order();
        let book = Book::new();
        let mut stage = Self {
            sim: builder.build(),
            directory: directory.to_owned(),
            sites: Rc::default(),
            processes: BTreeMap::new(),
            random: StdRng::seed_from_u64(plan.seed ^ 0x0dd5),
            changes: Rc::default(),
            ledger: Arc::default(),
            orders: Rc::default(),
            troubles: Rc::default(),
            contention: Arc::new(Contention::new(book.clone())),
            book,
            registers: Arc::new(Registers::new()?),
            gates: Gates::default(),
            keyspace: Arc::default(),
            rights: Arc::new(RightsJudge::new(directory, plan.seed)?),
            signals: Arc::default(),
            plan,
        };
        stage.enter();
        Ok(stage)
    }

    /// Adds all hosts to the simulation.
    fn enter(&mut self) {
        for node in 1..=self.plan.nodes {
            self.admit(node, Origin::Founder { nodes: self.plan.nodes });
        }
        let clients = Arc::new(Clients {
            count: self.plan.clients,
            nodes: self.plan.nodes,
            seed: self.plan.seed,
            book: self.book.clone(),
            registers: Arc::clone(&self.registers),
            finish: CancellationToken::new(),
            finished: AtomicUsize::new(0),
        });
        let desks: Vec<_> = (1..=self.plan.clients).map(|number| Arc::new(Desk::new(number))).collect();
        for desk in &desks {
            let (desk, clients) = (Arc::clone(desk), Arc::clone(&clients));
            self.sim.host(desk.host(), move || Arc::clone(&desk).work(Arc::clone(&clients)));
        }
        let writer = KeyspaceClientProcess::new(
            self.plan.nodes,
            self.plan.seed ^ 0x3e75,
            Arc::clone(&self.keyspace),
            clients.finish.clone(),
            self.plan.is_watched_for_long,
            self.book.clone(),
        );
        let writer = Arc::new(writer);
        self.sim.host(KeyspaceClientProcess::HOST, move || Arc::clone(&writer).work());
        let (nodes, seed, finish) = (self.plan.nodes, self.plan.seed, clients.finish.clone());
        let requests = RequestsClientProcess::new(nodes, seed ^ 0x7e9, Arc::clone(&self.keyspace), finish.clone());
        let requests = Arc::new(requests);
        self.sim.host(RequestsClientProcess::HOST, move || Arc::clone(&requests).work());
        for protocol in ContendedProtocol::ALL {
            let (contention, finish, generation) = (Arc::clone(&self.contention), finish.clone(), AtomicU32::new(0));
            let process = ContendingProcess { protocol, seats: nodes, seed, contention, finish, generation };
            let process = Arc::new(process);
            self.sim.host(protocol.name(), move || Arc::clone(&process).work());
        }
        let rights = RightsClientProcess {
            seats: nodes,
            seed: seed ^ 0x4197,
            judge: Arc::clone(&self.rights),
            contention: Arc::clone(&self.contention),
            finish: finish.clone(),
            generation: AtomicU32::new(0),
        };
        let rights = Arc::new(rights);
        self.sim.host(RightsClientProcess::HOST, move || Arc::clone(&rights).work());
        let signals = SignalsClientProcess {
            seats: nodes,
            seed: seed ^ 0x51a1,
            judge: Arc::clone(&self.signals),
            finish: finish.clone(),
        };
        let signals = Arc::new(signals);
        self.sim.host(SignalsClientProcess::HOST, move || Arc::clone(&signals).work());
        let hungry = watch::Sender::new(false);
        let greedy = Arc::new(GreedyClientProcess::new(
            nodes,
            seed ^ 0x96ee,
            finish,
            hungry.subscribe(),
            Arc::clone(self.ledger.refusals()),
            Arc::clone(&self.contention),
        ));
        self.sim.host(GreedyClientProcess::HOST, move || Arc::clone(&greedy).work());
        let director = Director {
            plan: self.plan.clone(),
            sites: Rc::clone(&self.sites),
            changes: Rc::clone(&self.changes),
            desks,
            clients,
            orders: Rc::clone(&self.orders),
            hungry,
            signals: Arc::clone(&self.signals),
            last_pause: Arc::clone(self.rights.last_pause()),
            keyspace: Arc::clone(&self.keyspace),
            contention: Arc::clone(&self.contention),
            troubles: Rc::clone(&self.troubles),
            nemesis: self.book.recorder("nemesis"),
        };
        self.sim.client(DIRECTOR, director.direct());
    }

    /// Adds the host of a node.
    fn admit(&mut self, node: u64, origin: Origin) {
        let Self { plan, ledger, gates, .. } = &*self;
        let seed = plan.seed.wrapping_mul(31).wrapping_add(node);
        let disk = Disk::new(seed, plan.sync_ms);
        let directory = self.directory.join(network::node_host(node));
        let ledger = Arc::clone(ledger);
        let scarcity = plan.scarcity.clone();
        let pace = plan.pace(node);
        let raft = plan.raft.clone();
        let site = Site::new(node, origin, raft, disk, directory, ledger, gates.clone(), scarcity, pace, seed);
        let site = Arc::new(site.with_trail(plan.audit_file_bytes));
        self.sites.borrow_mut().push(Arc::clone(&site));
        self.sim.host(network::node_host(node), move || Arc::clone(&site).run_machine());
    }

    /// Steps the simulation until the director ends or a check fails.
    fn play(&mut self) -> turmoil::Result {
        loop {
            system::pass_to(self.sim.elapsed());
            let is_over = self.sim.step()?;
            self.step_processes()?;
            let orders = std::mem::take(&mut *self.orders.borrow_mut());
            for order in orders {
                trace::say("order", format_args!("{order:?}"));
                self.carry_out(order);
            }
            if is_over {
                return Ok(());
            }
            // With a planted bug, the run continues, so that its effects on clients show.
            if !self.ledger.troubles().is_empty() && planted().is_none() {
                return Err("the tables of the nodes are wrong".into());
            }
        }
    }

    /// Lets the processes of all nodes run for as long as the network did.
    fn step_processes(&mut self) -> turmoil::Result {
        for site in self.sites.borrow().iter() {
            if let Some(process) = site.started() {
                self.processes.insert(site.id(), process);
            }
        }
        let mut nodes: Vec<_> = self.processes.keys().copied().collect();
        nodes.shuffle(&mut self.random);
        for node in nodes {
            let process = self.processes.get_mut(&node).expect("it is there");
            let is_stopped = self.sites.borrow()[node as usize - 1].clock.is_stopped();
            let host = network::node_host(node);
            let _span = tracing::info_span!("node", name = host.as_str()).entered();
            match if is_stopped { process.stand_still() } else { process.step() } {
                None | Some(Ok(())) => {}
                Some(Err(error)) => {
                    self.note_refused_entry(node, &error.to_string());
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Notes in the history that a node ended since it cannot apply an entry, if that is the error.
    fn note_refused_entry(&self, node: u64, error: &str) {
        let Some((_, rest)) = error.split_once(REFUSED_ENTRY) else { return };
        // The entry is named by its term and its index.
        let entry = rest.split(' ').next().unwrap_or_default();
        let index = entry.rsplit('.').next().and_then(|index| index.parse().ok()).unwrap_or_default();
        self.book.recorder("nemesis").fact(Fact::RefusedEntry { node, index, why: error.to_owned() });
    }

    fn carry_out(&mut self, order: Order) {
        let Self { sim, plan, gates, processes, .. } = self;
        match order {
            Order::Admit { node, cluster } => self.admit(node, Origin::Joins(cluster)),
            Order::Crash(host) => {
                sim.crash(host.as_str());
                if let Some(site) = self.sites.borrow().iter().find(|site| network::node_host(site.id()) == host) {
                    processes.remove(&site.id());
                    site.crash();
                }
            }
            Order::LoseData(node) => self.sites.borrow()[node as usize - 1].lose_data(plan.sync_ms),
            Order::FindData(node) => {
                if self.sites.borrow()[node as usize - 1].find_data() && planted().is_none() {
                    self.troubles.borrow_mut().push(format!("node {node} was taken in without its data"));
                }
            }
            Order::Gate { from, to, way, hold } => gates.hold(&from, &to, way, hold),
            Order::Start(host) => sim.bounce(host.as_str()),
            Order::Cut(one, other) => sim.partition(one.as_str(), other.as_str()),
            Order::CutOneWay(one, other) => sim.partition_oneway(one.as_str(), other.as_str()),
            Order::Hold(one, other) => sim.hold(one.as_str(), other.as_str()),
            Order::Latency(one, other, most) => sim.set_link_max_message_latency(one.as_str(), other.as_str(), most),
            Order::Loss(one, other, rate) => sim.set_link_fail_rate(one.as_str(), other.as_str(), rate),
            Order::Mend(one, other) => {
                sim.set_link_fail_rate(one.as_str(), other.as_str(), 0.0);
                sim.set_link_max_message_latency(one.as_str(), other.as_str(), plan.latency.1);
                sim.release(one.as_str(), other.as_str());
            }
        }
    }

    /// What all nodes have counted.
    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        self.sites.borrow().iter().for_each(|site| tally.add(&site.metrics()));
        tally
    }

    /// How long each node computed at the longest.
    fn measured(&self) -> Vec<Fact> {
        let of_node = |site: &Arc<Site>| {
            let (node, longest) = (site.id(), site.longest());
            let us = |time: Duration| time.as_micros() as u64;
            let turn = Fact::LongestTurn { node, runtime: "node".to_owned(), us: us(longest.turn) };
            [turn, Fact::LongestApply { node, us: us(longest.apply) }]
        };
        self.sites.borrow().iter().flat_map(of_node).collect()
    }

    /// Verifies the audit trails. Nothing is found if this run has none.
    fn verify_trails(&self, history: &History) -> Option<TrailFindings> {
        self.plan.audit_file_bytes?;
        let directory = |TrailPlace { generation, node }: TrailPlace| {
            self.sites.borrow()[node as usize - 1].audit_directory(generation)
        };
        Some(TrailFindings::verify(&self.ledger.lines(), directory, history))
    }

    fn judge(self, ended: turmoil::Result) -> std::io::Result<Outcome> {
        let liveness_bound_ms = u64::try_from(LIVENESS_BOUND.as_millis()).expect("a few seconds");
        let meta = Meta {
            seed: Some(self.plan.seed),
            stamp_ns: STAMP_NS,
            expiry_bound_ms: Some(EXPIRY_BOUND_MS),
            handover_bound_ms: Some(HANDOVER_BOUND_MS),
            liveness_bound_ms: Some(liveness_bound_ms),
            // A node that was cut off has what it lacks when the cluster must serve again. Only a watch at the end outlasts this: see
            // `Plan::is_watched_for_long`.
            watch_bound_ms: Some(liveness_bound_ms),
            // A leader that computes for longer is deposed.
            turn_bound_us: Some(self.plan.raft.election_timeout_ms_min * 1_000),
            apply_bound_us: Some(self.plan.unit_ns * UNITS_MAX / 1_000),
            ..Meta::new()
        };
        let mut writer = Writer::new(Vec::new());
        for fact in std::iter::once(Fact::Meta(meta)).chain(self.measured()) {
            let what = What::Fact(fact);
            writer.write(&Event { time_ns: 0, process: "nemesis".to_owned(), op: None, locks: Vec::new(), what })?;
        }
        let mut lines = writer.into_inner();
        lines.extend(self.book.lines());

        let mut troubles = self.troubles.take();
        troubles.extend(self.ledger.troubles());
        troubles.extend(self.contention.complaints());
        troubles.extend(self.rights.complaints());
        troubles.extend(self.signals.complaints());
        troubles.extend(self.keyspace.complaints(&self.ledger.truth()));
        troubles.extend(self.ledger.refusals().complaints(&self.ledger.truth()));
        troubles.extend(ended.err().map(|error| error.to_string()));
        let history = History::read(&*lines).map_err(std::io::Error::other)?;
        let trails = self.verify_trails(&history);
        troubles.extend(trails.iter().flat_map(TrailFindings::complaints).cloned());
        let findings = checker::check(&history).map_err(std::io::Error::other)?;
        troubles.extend(findings.iter().filter_map(convicted));
        let is_violated = |finding: &&Finding| matches!(finding.verdict, Verdict::Violated(_));
        let violated = findings.iter().filter(is_violated).map(Finding::name).collect();
        let told = Told::of(&history, About::default(), Vec::new()).map_err(std::io::Error::other)?;
        let summary = told.summary().clone();
        let mut missing = missing(&summary, &findings);
        missing.extend(self.rights.missing());
        missing.extend(self.signals.missing());
        missing.extend(self.contention.missing());
        missing.extend(hostile::missing(&self.keyspace.counts(), self.plan.duration));
        missing.extend(trails.iter().flat_map(TrailFindings::missing));
        let changes = self.changes.borrow();
        if changes.is_empty() {
            missing.push("no change of the membership".to_owned());
        }
        let changes = KINDS.map(|kind| (kind, changes.get(kind).copied().unwrap_or_default()));
        let longest: Vec<_> = self.sites.borrow().iter().map(|site| site.longest()).collect();
        let units = longest.iter().map(|longest| longest.units).max().unwrap_or_default();
        let apply = longest.iter().map(|longest| longest.apply).max().unwrap_or_default();
        let turn = longest.iter().map(|longest| longest.turn).max().unwrap_or_default();
        let dropped = self.sites.borrow().iter().map(|site| site.disk().dropped()).sum();
        let counts = [
            ("entries", self.ledger.entries() as u64),
            ("snapshots installed", self.ledger.installed()),
            ("writes lost in crashes", dropped),
            ("writes refused by fences", self.registers.refused()),
            ("late writes without a fence", self.registers.late()),
            ("events of the keyspace", self.ledger.truth().len() as u64),
            ("longest apply, units", units),
            ("longest apply, us", apply.as_micros() as u64),
            ("longest turn, us", turn.as_micros() as u64),
        ];
        let counts = counts
            .into_iter()
            .chain(changes)
            .chain(self.ledger.recoveries())
            .map(|(what, count)| (what.to_owned(), count))
            .chain(self.contention.counts())
            .chain(self.rights.counts())
            .chain(self.signals.counts())
            .chain(self.ledger.refusals().counts())
            .chain(tally::node_limits())
            .chain(trails.iter().flat_map(TrailFindings::counts));
        let words = self.keyspace.words();
        let words = words.counts().map(|(word, count)| (format!("{}{word}", tally::WORD), count));
        let tally = self.tally();
        if tally.limits() == 0 {
            missing.push("no limit was reached".to_owned());
        }
        let counts = counts.chain(self.keyspace.counts()).chain(words).chain(tally.counts()).collect();
        Ok(Outcome { history: lines, troubles, violated, missing, summary, simulated: self.sim.elapsed(), counts })
    }
}

/// The activity that a meaningful run needs and this one lacks.
fn missing(summary: &Summary, findings: &[Finding]) -> Vec<String> {
    let mut missing: Vec<_> = activity::missing(summary).into_iter().map(str::to_owned).collect();
    // There is no bystander: the simulated network has no way to the nodes that all faults leave alone.
    let is_vacuous =
        |finding: &&Finding| finding.verdict == Verdict::Vacuous && finding.property != Property::Bystander;
    let vacuous = findings.iter().filter(is_vacuous).map(|finding| finding.property);
    missing.extend(vacuous.map(|property| format!("no evidence of {property}")));
    for protocol in ContendedProtocol::ALL.map(ContendedProtocol::name) {
        let is_judged = |finding: &Finding| {
            finding.property == Property::MutualExclusion && finding.protocol.as_deref() == Some(protocol)
        };
        if !findings.iter().any(is_judged) {
            missing.push(format!("no evidence of mutual exclusion ({protocol})"));
        }
    }
    missing
}

/// The failure that a finding reports; `None`: no failure.
fn convicted(finding: &Finding) -> Option<String> {
    match &finding.verdict {
        Verdict::Holds | Verdict::Vacuous => None,
        Verdict::Undecided(why) => Some(format!("{} could not be decided: {why}", finding.name())),
        Verdict::Violated(violations) => {
            let mut text = format!("{} is broken, {} times:", finding.name(), violations.count);
            for violation in &violations.shown {
                let _ = write!(text, "\n    {} (lines {:?})", violation.says, violation.lines);
            }
            Some(text)
        }
    }
}
