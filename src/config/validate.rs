//! Validation of a configuration that parses.

use std::{collections::BTreeMap, fmt::Display, net::IpAddr, time::SystemTime};

use tracing_subscriber::EnvFilter;

use lockkeeper_machine::TTL_MS_MAX;

use super::{
    AuditConfig, Config, ConfiguredMember, LimitsConfig, Overrides, RaftConfig, TracesConfig, ZookeeperConfig,
};

/// The largest election timeout. Each loss of the leader stops the cluster for that time, and a longer one would outlast clients' leases.
const ELECTION_TIMEOUT_MS_LIMIT: u64 = 60_000;

/// The smallest limit of bytes: 2 MiB.
const BYTES_MIN: usize = 2 * 1024 * 1024;

/// The smallest size of an audit file: 4 KiB.
const AUDIT_FILE_BYTES_MIN: u64 = 4 * 1024;

/// The shortest timeout that sessions of ZooKeeper's clients may have at the least: an election takes up to half of it.
const SESSION_TIMEOUT_MS_MIN: u32 = 500;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// The maximum time for which clients of an earlier cluster may be served: a year, the life of a certificate.
const EARLIER_CLUSTER_MS_MAX: u64 = 366 * DAY_MS;

/// Hosts that are valid to listen on, but not to connect to.
const WILDCARDS: [&str; 2] = ["0.0.0.0", "[::]"];

/// A key whose value is not valid.
#[derive(Debug)]
pub(super) struct Problem {
    key: String,
    what: String,
}

impl Problem {
    fn new(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self { key: key.into(), what: what.into() }
    }

    /// The text for people: the key, the origin of its value unless it is the file, the problem, and the remedy.
    pub(super) fn described(self, overrides: &Overrides) -> String {
        let origin = if overrides.names(&self.key) { " (as set by a flag or the environment)" } else { "" };
        format!("{}{origin}: {}", self.key, self.what)
    }
}

/// Returns all problems.
pub(super) fn problems(config: &Config) -> Vec<Problem> {
    let mut problems = Vec::new();

    identity(config, &mut problems);
    members(&config.members, &mut problems);
    join(config, &mut problems);
    listeners(config, &mut problems);
    exposure(config, &mut problems);
    earlier_cluster(config, now_ms(), &mut problems);

    raft(&config.raft, &mut problems);
    limits(&config.limits, &mut problems);
    audit(&config.audit, &mut problems);
    traces(&config.traces, &mut problems);
    zookeeper(&config.zookeeper, &mut problems);

    if let Err(error) = EnvFilter::try_new(&config.log) {
        problems.push(Problem::new("log", format!("{:?} is not a filter: {error}: write, say, \"info\"", config.log)));
    }
    problems
}

fn traces(traces: &TracesConfig, problems: &mut Vec<Problem>) {
    let TracesConfig { endpoint, sample_ratio } = traces;
    if !endpoint.is_empty()
        && let Err(error) = lockkeeper_traces::check_endpoint(endpoint)
    {
        problems.push(Problem::new("traces.endpoint", error.to_string()));
    }
    if !(0.0..=1.0).contains(sample_ratio) {
        problems.push(Problem::new(
            "traces.sample_ratio",
            format!("{sample_ratio} is not between 0 and 1: choose a share"),
        ));
    }
}

fn zookeeper(zookeeper: &ZookeeperConfig, problems: &mut Vec<Problem>) {
    let ZookeeperConfig { session_timeout_ms_min: min, session_timeout_ms_max: max, closed_socket_grace_ms, .. } =
        zookeeper;
    if !(SESSION_TIMEOUT_MS_MIN..=TTL_MS_MAX).contains(min) {
        let what = format!(
            "{min} is not between {SESSION_TIMEOUT_MS_MIN} and {TTL_MS_MAX}: choose another value, 4000 if in doubt"
        );
        problems.push(Problem::new("zookeeper.session_timeout_ms_min", what));
    }
    if max < min || *max > TTL_MS_MAX {
        let what = format!(
            "{max} is not between zookeeper.session_timeout_ms_min ({min}) and {TTL_MS_MAX}: choose another value, \
             40000 if in doubt"
        );
        problems.push(Problem::new("zookeeper.session_timeout_ms_max", what));
    }
    if *closed_socket_grace_ms > TTL_MS_MAX {
        let what = format!("{closed_socket_grace_ms} exceeds {TTL_MS_MAX}: choose a shorter time, or 0 for none");
        problems.push(Problem::new("zookeeper.closed_socket_grace_ms", what));
    }
}

fn audit(audit: &AuditConfig, problems: &mut Vec<Problem>) {
    let AuditConfig { file_bytes, files_kept, .. } = *audit;
    if file_bytes < AUDIT_FILE_BYTES_MIN {
        let what = format!("{file_bytes} is below the minimum of {AUDIT_FILE_BYTES_MIN}: choose a larger value");
        problems.push(Problem::new("audit.file_bytes", what));
    }
    if files_kept == 1 {
        let what = "1 would leave nothing but the file that has just been begun: choose 2 or more, or 0 for all";
        problems.push(Problem::new("audit.files_kept", what));
    }
}

/// Returns settings that are allowed and probably wrong.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let count = config.members.len();
    if count > 0 && count.is_multiple_of(2) {
        let spare = (count - 1) / 2;
        warnings.push(format!(
            "members: {count} nodes outlive the loss of {spare}, as {} would: an odd number costs less",
            count - 1
        ));
    }

    if config.tls.is_none() && config.insecure {
        warnings.push(
            "insecure: there is no TLS, so whoever reaches this node's ports may take, release and forge locks: configure [tls]"
                .to_owned(),
        );
    }
    if let Some(earlier) = &config.earlier_cluster
        && earlier.until_ms().is_some_and(|until_ms| until_ms <= now_ms())
    {
        warnings.push(format!(
            "earlier_cluster: is over since {}: clients with certificates of cluster {} are refused; take it out of the configuration",
            earlier.until, earlier.cluster_id
        ));
    }

    if let Some(member) = config.this_member() {
        let pairs = [
            ("client_listen", &config.client_listen, &member.client_address),
            ("peer_listen", &config.peer_listen, &member.peer_address),
        ];
        for (key, listen, address) in pairs.into_iter().filter(|(_, listen, address)| !covers(listen, address)) {
            warnings.push(format!("{key}: listens on {listen}, while the members say {address}: fine behind NAT only"));
        }
    }
    warnings
}

/// Whether a configuration takes this as the id of a cluster: 1 to 64 of a-z, 0-9 and -.
pub fn is_cluster_id(id: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    (1..=64).contains(&id.len()) && id.bytes().all(is_allowed)
}

fn identity(config: &Config, problems: &mut Vec<Problem>) {
    let id = &config.cluster_id;
    if id.is_empty() && !config.join.is_empty() {
        // The node asks the cluster for its id.
    } else if id.is_empty() {
        problems.push(Problem::new("cluster_id", "is missing or empty: name the cluster, the same on all its nodes"));
    } else if !is_cluster_id(id) {
        problems.push(Problem::new("cluster_id", format!("{id:?} is not 1 to 64 of a-z, 0-9 and -: choose another")));
    }

    let this = config.node_id;
    if this == 0 {
        problems.push(Problem::new("node_id", "is missing or 0: give this node the id that its member has"));
    } else if config.this_member().is_none() {
        let ids: Vec<_> = config.members.iter().map(|member| member.node_id.to_string()).collect();
        let ids = ids.join(", ");
        let what = format!("{this} is not among the members ({ids}): correct it, or add a [[members]] for this node");
        problems.push(Problem::new("node_id", what));
    }

    if config.data_dir.as_os_str().is_empty() {
        problems.push(Problem::new("data_dir", "is missing or empty: name a directory that only this node uses"));
    }
}

fn members(members: &[ConfiguredMember], problems: &mut Vec<Problem>) {
    if members.is_empty() {
        problems.push(Problem::new("members", "is missing: add a [[members]] for each node, this one too"));
    }

    let mut ids = BTreeMap::new();
    let mut addresses = BTreeMap::new();
    for (position, member) in members.iter().enumerate() {
        let key = |field: &str| format!("members[{position}].{field}");
        let id = member.node_id;
        if id == 0 {
            problems.push(Problem::new(key("node_id"), "is 0: ids start at 1"));
        } else if let Some(first) = ids.insert(id, key("node_id")) {
            problems.push(Problem::new(key("node_id"), format!("{id} is {first} already: give each node its own")));
        }

        let both = [("client_address", &member.client_address), ("peer_address", &member.peer_address)];
        for (field, address) in both {
            if let Err(what) = check_reachable(address) {
                problems.push(Problem::new(key(field), what));
            } else if let Some(first) = addresses.insert(address, key(field)) {
                let what = format!("{address:?} is {first} already: give each its own host or port");
                problems.push(Problem::new(key(field), what));
            }
        }
    }
}

fn join(config: &Config, problems: &mut Vec<Problem>) {
    for endpoint in &config.join {
        if let Err(what) = check_reachable(endpoint) {
            problems.push(Problem::new("join", what));
        }
    }
    if config.bootstrap && !config.join.is_empty() {
        let what =
            "is true, and join names a cluster: a node either founds a cluster or joins one; leave one of them out";
        problems.push(Problem::new("bootstrap", what));
    }
}

fn listeners(config: &Config, problems: &mut Vec<Problem>) {
    for (key, listen) in [("client_listen", &config.client_listen), ("peer_listen", &config.peer_listen)] {
        // An empty address means this node's member address; a missing member is reported elsewhere.
        if listen.is_empty() && config.this_member().is_none() {
            continue;
        }
        // An address copied from the members was validated with them.
        let taken_over = config.this_member().is_some_and(|m| *listen == m.client_address || *listen == m.peer_address);
        if let (Err(what), false) = (host_and_port(listen), taken_over) {
            problems.push(Problem::new(key, what));
        }
    }

    let others = [
        ("dynamodb.listen", &config.dynamodb.listen),
        ("etcd.listen", &config.etcd.listen),
        ("etcd.advertise", &config.etcd.advertise),
        ("redis.listen", &config.redis.listen),
        ("redis.advertise", &config.redis.advertise),
        ("zookeeper.listen", &config.zookeeper.listen),
        ("http.listen", &config.http.listen),
    ];
    for (key, listen) in others {
        if let (false, Err(what)) = (listen.is_empty(), host_and_port(listen)) {
            problems.push(Problem::new(key, what));
        }
    }

    // Port 0 means any free port, so both may have it.
    let any_port = host_and_port(&config.client_listen).is_ok_and(|(_, port)| port == 0);
    if config.client_listen == config.peer_listen && !config.client_listen.is_empty() && !any_port {
        let what = format!("{:?} is client_listen already: listen for peers on another port", config.peer_listen);
        problems.push(Problem::new("peer_listen", what));
    }
}

/// A cluster whose clients are served for a time.
fn earlier_cluster(config: &Config, now_ms: u64, problems: &mut Vec<Problem>) {
    let Some(earlier) = &config.earlier_cluster else { return };
    let id = &earlier.cluster_id;
    let key = "earlier_cluster.cluster_id";
    if !is_cluster_id(id) {
        let what = format!("{id:?} is not 1 to 64 of a-z, 0-9 and -: name the cluster that this one was restored from");
        problems.push(Problem::new(key, what));
    } else if *id == config.cluster_id {
        let what =
            format!("{id:?} is this cluster: name the one that it was restored from, or leave [earlier_cluster] out");
        problems.push(Problem::new(key, what));
    }
    if config.tls.is_none() {
        let what = "there is no [tls], so no certificate is asked for: leave it out, or configure [tls]";
        problems.push(Problem::new("earlier_cluster", what));
    }

    let key = "earlier_cluster.until";
    let until = earlier.until;
    let Some(until_ms) = earlier.until_ms() else {
        let what = format!("{until} has no date, or a time without an offset: give a date, or 2026-12-24T12:00:00Z");
        return problems.push(Problem::new(key, what));
    };
    if until_ms > now_ms.saturating_add(EARLIER_CLUSTER_MS_MAX) {
        let days = EARLIER_CLUSTER_MS_MAX / DAY_MS;
        let what = format!(
            "{until} is more than {days} days from now: choose an earlier end, and give clients new certificates"
        );
        problems.push(Problem::new(key, what));
    }
}

fn now_ms() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "certificates are valid by the calendar")]
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since_1970.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Refuses ports that other machines reach without TLS: those ports accept requests from everybody.
fn exposure(config: &Config, problems: &mut Vec<Problem>) {
    if config.tls.is_some() || config.insecure {
        return;
    }

    let listeners = [
        ("client_listen", &config.client_listen),
        ("peer_listen", &config.peer_listen),
        ("dynamodb.listen", &config.dynamodb.listen),
        ("etcd.listen", &config.etcd.listen),
        ("redis.listen", &config.redis.listen),
        ("zookeeper.listen", &config.zookeeper.listen),
        ("http.listen", &config.http.listen),
    ];
    for (key, listen) in listeners {
        // A malformed address is reported elsewhere.
        if host_and_port(listen).is_ok() && !is_loopback(listen) {
            let what = format!(
                "other machines can reach {listen}, and without [tls] whoever does may take, release and forge locks: \
                 configure [tls] (`lockkeeper certs init` makes the files), or accept that with --insecure"
            );
            problems.push(Problem::new(key, what));
        }
    }
}

/// Whether only this machine reaches a listener on this address.
fn is_loopback(listen: &str) -> bool {
    host_and_port(listen).is_ok_and(|(host, _)| {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    })
}

fn raft(raft: &RaftConfig, problems: &mut Vec<Problem>) {
    let RaftConfig { heartbeat_ms, election_timeout_ms_min: min, election_timeout_ms_max: max, .. } = raft;
    if *heartbeat_ms == 0 {
        problems.push(Problem::new("raft.heartbeat_ms", "is 0: give it 1 or more, 75 if in doubt"));
    }
    if *heartbeat_ms > min / 3 {
        let what = format!(
            "{heartbeat_ms} is more than a third of raft.election_timeout_ms_min ({min}), so that two late heartbeats \
             cost an election: lower it, or raise that"
        );
        problems.push(Problem::new("raft.heartbeat_ms", what));
    }

    if min >= max {
        let what = format!(
            "{min} is not below raft.election_timeout_ms_max ({max}), so that all nodes would stand for election at once: \
             raise the latter, best to the double"
        );
        problems.push(Problem::new("raft.election_timeout_ms_min", what));
    }

    if *max > ELECTION_TIMEOUT_MS_LIMIT {
        let what = format!(
            "{max} exceeds {ELECTION_TIMEOUT_MS_LIMIT}, and the cluster would stop for so long after each loss of the leader: lower it"
        );
        problems.push(Problem::new("raft.election_timeout_ms_max", what));
    }

    if raft.backlog_bytes_max == 0 {
        let what = "is 0: no follower could lag at all: give it 1 or more, 268435456 if in doubt";
        problems.push(Problem::new("raft.backlog_bytes_max", what));
    }
    if raft.snapshot_entries == 0 {
        problems.push(Problem::new("raft.snapshot_entries", "is 0: give it 1 or more, 10000 if in doubt"));
    }
}

/// Refuses limits that are too small for the largest acquire: 64 locks, each with the maximum of data.
fn limits(limits: &LimitsConfig, problems: &mut Vec<Problem>) {
    let sizes = [("limits.table_bytes", limits.table_bytes), ("limits.session_bytes", limits.session_bytes)];
    for (key, bytes) in sizes {
        if bytes < BYTES_MIN {
            let what = format!("{bytes} is below {BYTES_MIN}, which one acquire may take: raise it");
            problems.push(Problem::new(key, what));
        }
    }

    let LimitsConfig { table_bytes, session_bytes } = *limits;
    if session_bytes > table_bytes {
        let what = format!("{session_bytes} is above limits.table_bytes ({table_bytes}): lower it, or raise that");
        problems.push(Problem::new("limits.session_bytes", what));
    }
}

/// Checks an address to which others connect.
///
/// # Errors
///
/// What is wrong with it and what to write instead: it is not host:port, has port 0, or is a wildcard, at which nobody can be reached.
pub fn check_reachable(address: &str) -> Result<(), String> {
    let (host, port) = host_and_port(address)?;
    if port == 0 {
        return Err(format!("{address:?} has port 0, at which nobody can be reached: name the port"));
    }
    if WILDCARDS.contains(&host) {
        return Err(format!(
            "{address:?} can be listened on, but not be reached: name the host, and set *_listen to this"
        ));
    }
    Ok(())
}

fn host_and_port(address: &str) -> Result<(&str, u16), String> {
    let fail = |why: &dyn Display| format!("{address:?} is not host:port: {why}");
    if address.contains('/') {
        return Err(fail(&"it is a URL: leave out the scheme and the path"));
    }

    let (host, port) = address.rsplit_once(':').ok_or_else(|| fail(&"there is no colon: add the port"))?;
    let port = port.parse().map_err(|_| fail(&"the port is not a number up to 65535: correct it"))?;
    if host.is_empty() {
        return Err(fail(&"there is no host: add it, 0.0.0.0 to listen on all"));
    }
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err(fail(&"an IPv6 address needs brackets: write, say, [::1]:7101"));
    }
    Ok((host, port))
}

/// Whether a connection to `address` on this machine reaches the listener on `listen`.
fn covers(listen: &str, address: &str) -> bool {
    match (host_and_port(listen), host_and_port(address)) {
        (Ok((listen, listen_port)), Ok((host, port))) => {
            listen_port == port && (listen == host || WILDCARDS.contains(&listen))
        }
        _ => false,
    }
}
