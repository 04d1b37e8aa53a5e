//! The HTTP/1.1 port for people, probes and scrapers.
//!
//! | path | answers |
//! |---|---|
//! | `/livez` | 200 while the node runs; 503 once Raft has stopped: then only a restart helps |
//! | `/readyz` | 200 while the node can serve, as gRPC's health service says it; 503 and the reason otherwise |
//! | `/metrics` | everything that is counted and measured, for Prometheus |
//! | `/`, `/console/…` | the [`console`] |
//!
//! The first three ask for no identity: probes and scrapers have none. So nothing there names a lock, a client or its data. Keep clients
//! that must not know how busy the cluster is away from the port. The console asks for the rights that gRPC asks for.

use std::{
    convert::Infallible,
    fs, io,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tower::ServiceExt as _;

use super::{
    cluster::Cluster,
    console::{self, Console, RequestOrigin},
    http_port::HttpPort,
    service::Service,
    unread::UnreadLayer,
};
use lockkeeper_http1::PortLimits;
use lockkeeper_metrics::{CONTENT_TYPE, Metrics, Present};
use lockkeeper_planted::VERSION;
use lockkeeper_proto::v1::{Member, Role, StatusResponse};
use lockkeeper_redis::LibraryUse;
use lockkeeper_transport::{Listen, tls::Acceptor};

/// Maximum number of bytes of a request's line and headers.
const HEADER_BYTES_MAX: usize = 16 << 10;
/// Time limit for the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Paths that are answered however slow or unread everything else is at this port.
const PROBES: [&str; 2] = ["/livez", "/readyz"];
/// Pause between the end of a page of metrics and the beginning of the next one.
const BETWEEN_PAGES: Duration = Duration::from_millis(100);

/// What the pages show.
#[derive(Clone, Debug)]
pub(crate) struct Web {
    pub(crate) cluster: Cluster,
    pub(crate) service: Service,
    pub(crate) metrics: Metrics,
    pub(crate) console: Console,
    /// The data directory.
    pub(crate) data: Arc<Path>,
    pub(crate) page: MetricsPage,
}

/// The page of metrics. One page is made at a time, for everybody who waits for it, so the cost does not grow with the number of scrapers.
#[derive(Clone, Debug, Default)]
pub(crate) struct MetricsPage {
    /// Number of pages that were begun.
    begun: Arc<AtomicU64>,
    /// Held while a page is made.
    newest: Arc<Mutex<Option<MadePage>>>,
}

#[derive(Debug)]
struct MadePage {
    number: u64,
    made: Instant,
    text: Bytes,
}

impl MetricsPage {
    /// Returns a page that was begun after this call.
    async fn get(&self, make: impl Future<Output = Bytes>) -> Bytes {
        let wanted = self.begun.load(Ordering::Relaxed) + 1;
        let mut newest = self.newest.lock().await;
        if let Some(page) = &*newest {
            if page.number >= wanted {
                return page.text.clone();
            }
            // The caller that makes the next page sleeps under the lock: all others wait for the same page.
            sleep_until(page.made + BETWEEN_PAGES).await;
        }

        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let text = make.await;
        *newest = Some(MadePage { number, made: Instant::now(), text: text.clone() });
        text
    }
}

/// Serves the port until `stopping` is cancelled.
pub(crate) async fn serve<L: Listen>(
    listener: L,
    acceptor: Option<Acceptor>,
    connections_max: usize,
    web: Web,
    unread: UnreadLayer,
    stopping: CancellationToken,
) {
    let limits = PortLimits {
        connections_max,
        header_bytes_max: HEADER_BYTES_MAX,
        header_timeout: HEADER_TIMEOUT,
        probes: &PROBES,
        refuses: false,
        // The console has a gate of its own.
        browsers: true,
    };

    let console = web.console.clone().routes();
    let routes = Router::new()
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(web)
        .merge(console);

    let answer = move |mut request: http::Request<hyper::body::Incoming>, client: SocketAddr| {
        let routes = routes.clone();
        let unread = unread.clone();

        request.extensions_mut().insert(RequestOrigin(client));
        let has_changed = console::changes_something(request.uri().path());
        async move {
            let answer: Result<Response, Infallible> = routes.oneshot(request.map(axum::body::Body::new)).await;
            let answer = answer.unwrap_or_else(|never| match never {});
            answer.map(|body| unread.limit(client, Body::new(body), has_changed))
        }
    };

    lockkeeper_http1::serve(HttpPort { listener, acceptor }, limits, answer, stopping).await;
}

async fn alive(State(web): State<Web>) -> Response {
    if web.cluster.has_stopped() {
        (StatusCode::SERVICE_UNAVAILABLE, "raft has stopped: see the log\n").into_response()
    } else {
        "the node runs\n".into_response()
    }
}

async fn ready(State(web): State<Web>) -> Response {
    match web.cluster.trouble().await {
        None => "the node can serve\n".into_response(),
        Some(trouble) => (StatusCode::SERVICE_UNAVAILABLE, format!("{trouble}\n")).into_response(),
    }
}

async fn metrics(State(web): State<Web>) -> Response {
    let text = web.page.get(metrics_text(&web)).await;
    ([(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE))], text).into_response()
}

async fn metrics_text(web: &Web) -> Bytes {
    // Without the hash of the table, this does not fail. The counters are shown in any case.
    let status = web.cluster.condition(false).await.ok();
    let Web { cluster, service, metrics, data, .. } = web.clone();

    // This reads files and directories, and a disk may be slow.
    let make = move || {
        let present = status.map_or_else(Present::default, |status| present(&status, &cluster, &service, &data));
        io::Result::Ok(Bytes::from(metrics.text(present)))
    };
    // An error means that the node ends.
    web.cluster.blocking.run(make).await.unwrap_or_default()
}

/// The values of this moment, beside those that were counted.
fn present(status: &StatusResponse, cluster: &Cluster, service: &Service, data: &Path) -> Present {
    let mut now = Present::default();
    let version = [(VERSION.to_owned(), 1.0)];
    now.gauges("lockkeeper_build_info", "The version of the program; always 1", "version", version);
    add_raft(&mut now, status);
    add_table(&mut now, status);

    if let Some(comparison) = &cluster.comparison {
        let help = "Whether this node's table is known to differ from the leader's";
        now.gauge("lockkeeper_table_differs", help, comparison.differs().into());
        let help = "Last log index at which this node's table was found equal to the leader's; 0 if it was not compared since the start";
        now.gauge("lockkeeper_table_compared_index", help, comparison.agreed());
    }

    add_disk(&mut now, status);
    add_data(&mut now, data);

    let (denied, limited) = service.access().refused();
    now.counter("lockkeeper_denied", "Requests refused because the caller had no identity or no right", denied);
    now.counter("lockkeeper_limited", "Requests refused by a limit of their identity", limited);

    now.gauge("lockkeeper_queued_commands", "Commands that wait for a batch, at the leader", service.queued());
    let help = "Largest delay of a task of Raft's runtime in the last minute";
    now.seconds("lockkeeper_turn_delay_max_seconds", help, Duration::from_micros(status.turn_delay_us_max));
    add_runtimes(&mut now, cluster);
    add_libraries(&mut now, service);
    add_process(&mut now);
    now
}

fn add_runtimes(now: &mut Present, cluster: &Cluster) {
    let Cluster { pulse, clients_pulse, adapters_pulse, .. } = cluster;
    let runtimes = [("raft", pulse), ("clients", clients_pulse), ("adapters", adapters_pulse)];
    let delays = runtimes.map(|(runtime, pulse)| (runtime.to_owned(), pulse.delay_max().as_secs_f64()));
    let help = "Largest delay of a task of a runtime in the last minute";
    now.gauges("lockkeeper_runtime_delay_max_seconds", help, "runtime", delays);
}

/// What the clients of Redis' port do. Their libraries are of a fixed set of names.
fn add_libraries(now: &mut Present, service: &Service) {
    let uses = service.libraries();
    if uses.is_empty() {
        return;
    }
    let by_library = |count: fn(&LibraryUse) -> u64| uses.iter().map(move |it| (it.library.to_owned(), count(it)));

    let help = "Open connections at Redis' port, by the library of the client";
    #[expect(clippy::cast_precision_loss, reason = "a graph does not show it")]
    let connections = by_library(|it| it.connections).map(|(library, count)| (library, count as f64));
    now.gauges("lockkeeper_redis_connections", help, "library", connections);
    let help = "Commands at Redis' port, by the library of the client";
    now.counters("lockkeeper_redis_commands", help, "library", by_library(|it| it.commands));
    let help = "Errors that clients of Redis' port were told, by the library of the client; without NOSCRIPT";
    now.counters("lockkeeper_redis_errors", help, "library", by_library(|it| it.errors));
}

fn add_raft(now: &mut Present, status: &StatusResponse) {
    now.gauge("lockkeeper_ready", "Whether this node can serve", status.serving.into());
    now.gauge("lockkeeper_leader", "Whether this node leads", (status.role() == Role::Leader).into());
    now.gauge("lockkeeper_leader_id", "The leader that this node knows; 0: none", status.leader_id);
    now.gauge("lockkeeper_term", "Raft's term", status.term);

    now.gauge("lockkeeper_log_last_index", "Last entry of the log", status.last_log_index);
    now.gauge("lockkeeper_log_committed_index", "Last entry known to be committed", status.committed_index);
    now.gauge("lockkeeper_log_applied_index", "Last entry applied to the table", status.applied_index);
    now.gauge("lockkeeper_log_purged_index", "Last entry that was removed from the log", status.purged_index);
    now.gauge("lockkeeper_snapshot_index", "Last entry in the newest snapshot", status.snapshot_index);

    now.gauge("lockkeeper_cluster_version", "The cluster version", status.cluster_version.into());
    now.gauge("lockkeeper_members", "Members of the cluster", status.members.len() as u64);
    let voters = status.members.iter().filter(|member| member.voter).count();
    now.gauge("lockkeeper_voters", "Members that vote", voters as u64);

    // Only a leader knows the progress of the others.
    if status.role() == Role::Leader {
        let by_member = |value: fn(&Member, &StatusResponse) -> Option<f64>| {
            let members = status.members.iter().filter(|member| member.node_id != status.node_id);
            members.filter_map(|member| Some((member.node_id.to_string(), value(member, status)?))).collect::<Vec<_>>()
        };

        #[expect(clippy::cast_precision_loss, reason = "a graph does not show it")]
        let lag = by_member(|member, status| Some(status.last_log_index.saturating_sub(member.matched_index) as f64));
        now.gauges("lockkeeper_member_lag_entries", "Entries that a member lacks, at the leader", "node", lag);

        let silence = by_member(|member, _| Some(Duration::from_millis(member.silent_ms?).as_secs_f64()));
        now.gauges("lockkeeper_member_silence_seconds", "Time since a member answered, at the leader", "node", silence);
    }
}

fn add_table(now: &mut Present, status: &StatusResponse) {
    now.gauge("lockkeeper_sessions", "Open sessions", status.sessions);
    now.gauge("lockkeeper_locks", "Locks that are held, awaited or carry data", status.locks);
    now.gauge("lockkeeper_waiters", "Acquires that wait", status.waiters);
    now.gauge("lockkeeper_table_bytes", "Size of the table", status.table_bytes);
    now.gauge("lockkeeper_table_limit_bytes", "Limit of that size; 0: none", status.table_bytes_max);
    now.counter(
        "lockkeeper_tokens",
        "Fencing tokens and revisions issued since the cluster was founded",
        status.last_token,
    );
    now.counter("lockkeeper_audit_lines", "Lines of the audit trail", status.audit_lines);
}

fn add_disk(now: &mut Present, status: &StatusResponse) {
    now.gauge("lockkeeper_disk_free_bytes", "Free space for the node's data", status.disk_free_bytes);
    now.gauge("lockkeeper_disk_size_bytes", "Size of the file system with the node's data", status.disk_total_bytes);
    let help = "Below this free space the node counts as short of it";
    now.gauge("lockkeeper_disk_reserve_bytes", help, status.disk_reserve_bytes);
    now.gauge("lockkeeper_disk_low", "Whether the free space is below the reserve", status.disk_low.into());

    if let Some(left) = status.certificate_seconds_left {
        // A certificate that has expired has no time left.
        let left = Duration::from_secs(left.try_into().unwrap_or_default());
        now.seconds("lockkeeper_certificate_left_seconds", "Time until this node's certificate expires", left);
    }
}

/// Adds the sizes of the node's files, for those that exist.
fn add_data(now: &mut Present, data: &Path) {
    let journal = |file: &Path| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("journal-"));
    let parts = [
        ("journal", bytes_in(&data.join("log"), journal)),
        ("sled", bytes_in(&data.join("log").join("sled"), |_| true)),
        ("snapshots", bytes_in(&data.join("snapshots"), |_| true)),
    ];

    #[expect(clippy::cast_precision_loss, reason = "a graph does not show it")]
    let sizes = parts.into_iter().filter_map(|(part, bytes)| Some((part.to_owned(), bytes? as f64)));
    now.gauges("lockkeeper_data_size_bytes", "Size of the files of the node's data", "part", sizes);
}

/// Returns the size of the wanted files of a directory, without those in directories below it, or `None` if it cannot be read.
fn bytes_in(directory: &Path, is_wanted: impl Fn(&Path) -> bool) -> Option<u64> {
    let files = fs::read_dir(directory).ok()?.filter_map(Result::ok).filter(|file| is_wanted(&file.path()));
    Some(files.filter_map(|file| file.metadata().ok()).filter(fs::Metadata::is_file).map(|file| file.len()).sum())
}

/// Adds what `/proc` says about this process; only Linux has that.
fn add_process(now: &mut Present) {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    // The second number is that of resident pages (proc_pid_statm(5)).
    let pages = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    if let Some(pages) = pages {
        let bytes = pages.saturating_mul(rustix::param::page_size() as u64);
        now.gauge("process_resident_memory_bytes", "Memory of this process that is in use", bytes);
    }

    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        now.gauge("process_open_fds", "Open file descriptors", files.count() as u64);
    }

    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    now.gauge("process_max_fds", "Limit of open file descriptors", most.unwrap_or(u64::MAX));
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_page_is_made_at_a_time_and_none_is_older_than_its_request() {
        let page = MetricsPage::default();
        let made = AtomicU64::new(0);
        let asked = Instant::now();
        let make = async || {
            let began = asked.elapsed();
            made.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_secs(1)).await;
            Bytes::from(began.as_millis().to_string())
        };
        let asks = (0..300_u64).map(async |number| {
            sleep(Duration::from_millis(number)).await;
            let began = page.get(make()).await;
            let began: u64 = String::from_utf8(began.to_vec()).expect("text").parse().expect("a number");
            assert!(began >= number, "begun at {began}, asked for at {number}");
        });
        join_all(asks).await;
        assert_eq!(made.load(Ordering::Relaxed), 2, "one for the first, one for all others");
        assert_eq!(asked.elapsed(), Duration::from_secs(2) + BETWEEN_PAGES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_given_up_delays_no_other() {
        let page = MetricsPage::default();
        let gone = tokio::time::timeout(Duration::from_secs(1), page.get(std::future::pending())).await;
        assert!(gone.is_err());
        assert_eq!(page.get(async { Bytes::from_static(b"page") }).await, "page");
    }
}
