//! What a node counts and measures, in the text that Prometheus reads (`OpenMetrics` 1.0).
//!
//! Counters and histograms live in [`Metrics`] for as long as the process does; it is cheap to clone. A present value, such as the number
//! of locks, is not kept a second time: the code that answers a scrape reads it then and adds it with [`Present`].
//!
//! Names follow Prometheus's conventions: `lockkeeper_` first, base units (seconds, bytes) at the end, `_total` after a
//! counter. Clients choose no label value, so the number of time series is bounded.
//!
//! **Cost.** Stages are measured for each batch of commands, group of entries or append, not for each command. A request costs
//! one counter and one histogram.

mod outcomes;
mod ports;
mod stages;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::{Registry, Unit},
};
use tokio::time::Instant;

pub use self::{
    outcomes::{Did, HoldEnd, WaitOutcome},
    ports::{MeteredPort, OpenConnection},
    stages::{CommandStage, StageCounts},
};
use self::{ports::PortConnections, stages::seconds};

/// The content type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The upper bounds in seconds of the times for which locks are held, from a short critical section to a leadership of a day.
const HELD_SECONDS: [f64; 16] =
    [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0];
/// The upper bounds of the number of commands in a batch.
const COMMANDS: [f64; 12] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0];

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct HoldLabel {
    end: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct WaitLabel {
    outcome: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct LimitLabel {
    limit: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct StageLabel {
    stage: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct CallLabels {
    call: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OutcomeLabel {
    call: &'static str,
    outcome: &'static str,
}

/// All that a node counts. Clones share it.
#[derive(Clone)]
pub struct Metrics {
    shared: Arc<Instruments>,
}

struct Instruments {
    registry: Registry,
    /// The stages alone, which `registry` has too.
    stage_registry: Registry,
    stages: Vec<Histogram>,
    commands: Histogram,
    did: Vec<Counter>,
    calls: Family<OutcomeLabel, Counter>,
    durations: Family<CallLabels, Histogram, fn() -> Histogram>,
    leaderships: Counter,
    waits: Family<WaitLabel, Histogram, fn() -> Histogram>,
    holds: Vec<Histogram>,
    connections: Vec<PortConnections>,
    limits: Family<LimitLabel, Counter>,
    watch_lags: Counter,
    clock_stalls: Counter,
    dropped_spans: Counter,
    snapshots: Histogram,
    installs: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let stages: Family<StageLabel, Histogram, fn() -> Histogram> = Family::new_with_constructor(seconds);
        let help = "Time of each step from a command to its reply, by batch or group";
        registry.register_with_unit("lockkeeper_stage_duration", help, Unit::Seconds, stages.clone());
        let mut stage_registry = Registry::default();
        stage_registry.register("stage", help, stages.clone());
        let of = |stage: CommandStage| stages.get_or_create(&StageLabel { stage: stage.name() }).clone();
        let stages = CommandStage::ALL.map(of).to_vec();

        let commands = Histogram::new(COMMANDS);
        registry.register("lockkeeper_batch_commands", "Commands in a batch of the leader", commands.clone());

        let calls = Family::default();
        registry.register("lockkeeper_calls", "Requests executed by this node, by kind and outcome", calls.clone());
        let durations: Family<CallLabels, Histogram, fn() -> Histogram> = Family::new_with_constructor(seconds);
        let help = "Time of a request at the node that executes it; that of an acquire includes its wait";
        registry.register_with_unit("lockkeeper_call_duration", help, Unit::Seconds, durations.clone());

        let help = "Times that this node came to lead; over all nodes: changes of the leader";
        let leaderships = counter(&mut registry, "lockkeeper_leaderships", help);

        let waits: Family<WaitLabel, Histogram, fn() -> Histogram> = Family::new_with_constructor(seconds);
        let help = "Time that an acquire waited in queues, at the leader, by how the wait ended";
        registry.register_with_unit("lockkeeper_wait_duration", help, Unit::Seconds, waits.clone());
        // Made now, so that each of them is told from the beginning, with 0.
        for outcome in WaitOutcome::ALL {
            drop(waits.get_or_create(&WaitLabel { outcome: outcome.name() }));
        }

        let holds: Family<HoldLabel, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(HELD_SECONDS));
        let help = "Time that a lock was held, by how that ended, as this node applied it";
        registry.register_with_unit("lockkeeper_hold_duration", help, Unit::Seconds, holds.clone());
        let holds = HoldEnd::ALL.map(|end| holds.get_or_create(&HoldLabel { end: end.name() }).clone()).to_vec();

        let connections = PortConnections::register(&mut registry);
        let limits = refused_by_limits(&mut registry);

        let help = "Times that a watcher lagged too far behind and was sent the state again";
        let watch_lags = counter(&mut registry, "lockkeeper_watch_lags", help);
        let help = "Times that this leader stood still or was cut off for longer than its clock counts";
        let clock_stalls = counter(&mut registry, "lockkeeper_clock_stalls", help);
        let help = "Spans of traces that were not sent: the collector is too slow, or gone";
        let dropped_spans = counter(&mut registry, "lockkeeper_dropped_spans", help);

        let snapshots = seconds();
        let installs = seconds();
        let help = "Time to write a snapshot of the table";
        registry.register_with_unit("lockkeeper_snapshot_duration", help, Unit::Seconds, snapshots.clone());
        let help = "Time to install a snapshot from the leader, once it was received";
        registry.register_with_unit("lockkeeper_snapshot_install_duration", help, Unit::Seconds, installs.clone());
        let did = Did::ALL.map(|did| {
            let (name, help) = did.name_and_help();
            counter(&mut registry, name, help)
        });
        let did = did.to_vec();

        Self {
            shared: Arc::new(Instruments {
                registry,
                stage_registry,
                stages,
                commands,
                did,
                calls,
                durations,
                leaderships,
                waits,
                holds,
                connections,
                limits,
                watch_lags,
                clock_stalls,
                dropped_spans,
                snapshots,
                installs,
            }),
        }
    }
}

/// Registers a counter. The order of the registrations is that of the page.
fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

/// Registers the refusals by limits.
fn refused_by_limits(registry: &mut Registry) -> Family<LimitLabel, Counter> {
    let limits = Family::<LimitLabel, Counter>::default();

    // These limits are the ones that operators set or watch. Their series exist from the start, so the rate of the first
    // refusal is seen.
    for limit in ["locks", "session_bytes", "sessions", "table_bytes", "waiters"] {
        drop(limits.get_or_create(&LimitLabel { limit: limit.to_owned() }));
    }
    registry.register("lockkeeper_limits_reached", "Requests refused by a limit, by its name", limits.clone());
    limits
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics(..)")
    }
}

impl Metrics {
    /// Starts to measure a stage.
    pub fn start(&self, stage: CommandStage) -> Timer<'_> {
        Timer { metrics: self, stage, began: Instant::now() }
    }

    /// Notes that a stage took this time.
    pub fn took(&self, stage: CommandStage, time: Duration) {
        self.shared.stages[stage as usize].observe(time.as_secs_f64());
    }

    /// The present counts of the stages' histograms. It takes some microseconds, so call it a few times a minute at most.
    pub fn stage_counts(&self) -> StageCounts {
        let mut text = String::new();
        text::encode_registry(&mut text, &self.shared.stage_registry).expect("writing to memory does not fail");
        StageCounts::from_text(&text)
    }

    /// Notes that the leader made a batch of this number of commands.
    pub fn batch(&self, commands: usize) {
        #[expect(clippy::cast_precision_loss, reason = "a batch has some thousands at the most")]
        self.shared.commands.observe(commands as f64);
    }

    /// Notes that the table did something.
    pub fn did(&self, what: Did) {
        self.shared.did[what as usize].inc();
    }

    /// How often the table did this, since the process started.
    pub fn times(&self, what: Did) -> u64 {
        self.shared.did[what as usize].get()
    }

    /// Notes that this node came to lead.
    pub fn came_to_lead(&self) {
        self.shared.leaderships.inc();
    }

    /// Notes that a request was answered. `outcome` is `ok` or the reason of the error.
    pub fn called(&self, call: &'static str, outcome: &'static str, time: Duration) {
        self.shared.calls.get_or_create(&OutcomeLabel { call, outcome }).inc();
        self.shared.durations.get_or_create(&CallLabels { call }).observe(time.as_secs_f64());
    }

    /// Notes that a wait ended after this time.
    pub fn waited(&self, outcome: WaitOutcome, time: Duration) {
        self.shared.waits.get_or_create(&WaitLabel { outcome: outcome.name() }).observe(time.as_secs_f64());
    }

    /// Notes that a lock had been held for this time.
    pub fn held(&self, end: HoldEnd, time: Duration) {
        self.shared.holds[end as usize].observe(time.as_secs_f64());
    }

    /// Notes that a connection was accepted. It counts as open until the value is dropped.
    pub fn connected(&self, port: MeteredPort) -> OpenConnection {
        let connections = &self.shared.connections[port as usize];
        connections.accepted.inc();
        connections.open.inc();
        OpenConnection(connections.open.clone())
    }

    /// Notes that a connection was refused.
    pub fn refused_connection(&self, port: MeteredPort) {
        self.shared.connections[port as usize].refused.inc();
    }

    /// Notes that a request was refused by the limit with this name. The name is the program's, never a client's text.
    pub fn limit_reached(&self, limit: &str) {
        self.shared.limits.get_or_create(&LimitLabel { limit: limit.to_owned() }).inc();
    }

    /// Notes that a watcher lagged too far behind.
    pub fn watch_lagged(&self) {
        self.shared.watch_lags.inc();
    }

    /// Notes that the leader's clock did not count a stall.
    pub fn clock_stalled(&self) {
        self.shared.clock_stalls.inc();
    }

    /// Notes that this number of spans of traces was not sent.
    pub fn dropped_spans(&self, count: u64) {
        self.shared.dropped_spans.inc_by(count);
    }

    /// Notes that a snapshot was written.
    pub fn wrote_snapshot(&self, time: Duration) {
        self.shared.snapshots.observe(time.as_secs_f64());
    }

    /// Notes that a snapshot was installed.
    pub fn installed_snapshot(&self, time: Duration) {
        self.shared.installs.observe(time.as_secs_f64());
    }

    /// All metrics and the present values as text, for one scrape.
    pub fn text(&self, present: Present) -> String {
        let mut text = String::new();
        let written = text::encode_registry(&mut text, &self.shared.registry)
            .and_then(|()| text::encode_registry(&mut text, &present.registry))
            .and_then(|()| text::encode_eof(&mut text));
        written.expect("writing to memory does not fail");
        text
    }
}

/// Measures a stage from its start until it is stopped. If it is dropped instead, the stage failed, and nothing is measured.
#[derive(Debug)]
#[must_use]
pub struct Timer<'a> {
    metrics: &'a Metrics,
    stage: CommandStage,
    began: Instant,
}

impl Timer<'_> {
    /// Notes that the stage has ended.
    pub fn stop(self) {
        self.metrics.took(self.stage, self.began.elapsed());
    }
}

/// The values as they are now, for one scrape.
#[derive(Debug, Default)]
pub struct Present {
    registry: Registry,
}

impl Present {
    /// Adds a value that goes up and down.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.registry.register(name, help, ConstGauge::new(signed(value)));
    }

    /// Adds a duration that goes up and down, as seconds.
    pub fn seconds(&mut self, name: &'static str, help: &'static str, value: Duration) {
        self.registry.register(name, help, ConstGauge::new(value.as_secs_f64()));
    }

    /// Adds values that go up and down, one for each of several things that a label tells apart.
    pub fn gauges(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (String, f64)>,
    ) {
        let family = Family::<Vec<(&'static str, String)>, Gauge<f64, AtomicU64>>::default();
        for (thing, value) in values {
            family.get_or_create(&vec![(label, thing)]).set(value);
        }
        self.registry.register(name, help, family);
    }

    /// Adds values that only rise, one for each of several things that a label tells apart. The name goes without `_total`.
    pub fn counters(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (String, u64)>,
    ) {
        let family = Family::<Vec<(&'static str, String)>, Counter>::default();
        for (thing, value) in values {
            family.get_or_create(&vec![(label, thing)]).inc_by(value);
        }
        self.registry.register(name, help, family);
    }

    /// Adds a value that only rises. The name goes without `_total`.
    pub fn counter(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.registry.register(name, help, ConstCounter::new(value));
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_and_act_has_the_place_of_its_name() {
        let metrics = Metrics::default();
        CommandStage::ALL.into_iter().for_each(|stage| metrics.start(stage).stop());
        for did in Did::ALL {
            metrics.did(did);
        }
        for end in HoldEnd::ALL {
            metrics.held(end, Duration::from_secs(2));
        }
        let text = metrics.text(Present::default());
        for stage in CommandStage::ALL {
            let line = format!("lockkeeper_stage_duration_seconds_count{{stage=\"{}\"}} 1\n", stage.name());
            assert!(text.contains(&line), "{line}{text}");
        }
        for end in HoldEnd::ALL {
            let line = format!("lockkeeper_hold_duration_seconds_bucket{{le=\"5.0\",end=\"{}\"}} 1\n", end.name());
            assert!(text.contains(&line), "{line}{text}");
        }
        for did in Did::ALL {
            let line = format!("{}_total 1\n", did.name_and_help().0);
            assert!(text.contains(&line), "{line}{text}");
        }
    }

    #[test]
    fn a_connection_is_open_until_it_is_dropped() {
        let metrics = Metrics::default();
        let open = MeteredPort::ALL.map(|port| metrics.connected(port));
        drop(metrics.connected(MeteredPort::Peers));
        metrics.refused_connection(MeteredPort::Etcd);
        let has = |line: &str| {
            let text = metrics.text(Present::default());
            assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
        };
        for port in MeteredPort::ALL.map(MeteredPort::name) {
            has(&format!("lockkeeper_connections{{port=\"{port}\"}} 1"));
        }
        has("lockkeeper_connections_accepted_total{port=\"peers\"} 2");
        has("lockkeeper_connections_refused_total{port=\"etcd\"} 1");
        has("lockkeeper_connections_refused_total{port=\"clients\"} 0");
        drop(open);
        has("lockkeeper_connections{port=\"clients\"} 0");
    }

    #[test]
    fn a_scrape_has_what_was_counted_and_what_is_there() {
        let metrics = Metrics::default();
        metrics.called("acquire_locks", "ok", Duration::from_millis(3));
        metrics.called("acquire_locks", "LIMIT_REACHED", Duration::from_millis(3));
        metrics.batch(3);
        metrics.came_to_lead();
        metrics.waited(WaitOutcome::TimedOut, Duration::from_secs(2));
        metrics.limit_reached("waiters");
        metrics.watch_lagged();
        metrics.clock_stalled();
        metrics.dropped_spans(5);
        metrics.wrote_snapshot(Duration::from_millis(20));
        metrics.installed_snapshot(Duration::from_millis(20));
        let mut present = Present::default();
        present.gauge("lockkeeper_locks", "Locks", 7);
        present.gauges("lockkeeper_log_lag_entries", "Lag", "node", [("2".to_owned(), 9.0)]);
        present.counter("lockkeeper_refused", "Refused", 4);
        present.counters("lockkeeper_commands", "Commands", "library", [("redis-py".to_owned(), 3)]);
        let text = metrics.text(present);
        for line in [
            "lockkeeper_calls_total{call=\"acquire_locks\",outcome=\"LIMIT_REACHED\"} 1\n",
            "lockkeeper_call_duration_seconds_bucket{le=\"0.005\",call=\"acquire_locks\"} 2\n",
            "lockkeeper_call_duration_seconds_bucket{le=\"0.0025\",call=\"acquire_locks\"} 0\n",
            "lockkeeper_batch_commands_bucket{le=\"4.0\"} 1\n",
            "# TYPE lockkeeper_locks gauge\nlockkeeper_locks 7\n",
            "lockkeeper_log_lag_entries{node=\"2\"} 9.0\n",
            "lockkeeper_refused_total 4\n",
            "lockkeeper_commands_total{library=\"redis-py\"} 3\n",
            "lockkeeper_dropped_spans_total 5\n",
            "lockkeeper_leaderships_total 1\n",
            "lockkeeper_wait_duration_seconds_bucket{le=\"2.5\",outcome=\"timed_out\"} 1\n",
            "lockkeeper_limits_reached_total{limit=\"waiters\"} 1\n",
            "lockkeeper_watch_lags_total 1\n",
            "lockkeeper_clock_stalls_total 1\n",
            "lockkeeper_snapshot_duration_seconds_count 1\n",
            "lockkeeper_snapshot_install_duration_seconds_count 1\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
