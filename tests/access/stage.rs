//! A cluster with tokens and a policy, and clients of each identity.

use std::{fs, path::Path, time::Duration};

use lockkeeper::{
    client::{Client, Error, Refusal, Session, SessionOptions},
    config::AuthConfig,
    local::{ClusterOptions, LocalCluster},
    proto::v1::{
        AcquireRequest, OpenSessionRequest, RequestId, Want, acquire_request::Wait, locks_client::LocksClient,
        sessions_client::SessionsClient,
    },
};
use lockkeeper_policy::BearerToken;
use lockkeeper_types::Identity;
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::timeout};
use tonic::{Request, Status, Streaming};

use crate::support::{LONG, cluster_with, until};

/// Who has which rights, unless a test says otherwise.
pub(crate) const POLICY: &str = r#"
[[rule]]
who = ["shop-*"]
may = ["acquire", "read", "watch"]
prefix = "seats/"

[[rule]]
who = ["ops"]
may = ["acquire", "read", "watch", "force-release", "administer"]

[limits.shop-limited]
calls-per-second = 5
sessions = 2
locks = 3
waiters = 1
"#;

/// A policy for the locks with this prefix: `shop-1` has what the page of a port names as the narrowest policy. The next two have a half of
/// it each.
pub(crate) fn narrowest_policy(prefix: &str) -> String {
    format!(
        r#"
[[rule]]
who = ["shop-1"]
may = ["acquire", "read"]
prefix = "{prefix}"

[[rule]]
who = ["shop-2"]
may = ["read"]
prefix = "{prefix}"

[[rule]]
who = ["shop-limited"]
may = ["acquire"]
prefix = "{prefix}"

[[rule]]
who = ["ops", "local"]
may = ["acquire", "read", "watch", "force-release", "administer"]

[limits.shop-limited]
connections = 1
"#
    )
}

pub(crate) const IDENTITIES: [&str; 4] = ["shop-1", "shop-2", "shop-limited", "ops"];

/// The cluster and its files.
pub(crate) struct Stage {
    pub(crate) cluster: LocalCluster,
    directory: TempDir,
}

/// The token of an identity.
pub(crate) fn token(identity: &str) -> BearerToken {
    let mut bytes = [0; 32];
    bytes.iter_mut().zip(identity.bytes().cycle()).for_each(|(byte, letter)| *byte = letter);
    BearerToken::from_random(bytes)
}

pub(crate) fn tokens() -> String {
    IDENTITIES.iter().map(|name| token(name).entry(&Identity::new(name).expect("valid"))).collect()
}

impl Stage {
    /// Three nodes with all tokens; `policy`: `None` for none.
    pub(crate) async fn new(policy: Option<&str>) -> Self {
        Self::with(policy, |_| {}).await
    }

    /// The same with changed options.
    pub(crate) async fn with(policy: Option<&str>, change: impl FnOnce(&mut ClusterOptions)) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut auth = AuthConfig { tokens: directory.path().join("tokens.toml"), ..AuthConfig::default() };
        fs::write(&auth.tokens, tokens()).expect("written");
        if let Some(policy) = policy {
            auth.policy = directory.path().join("policy.toml");
            fs::write(&auth.policy, policy).expect("written");
        }
        let cluster = cluster_with(|options| {
            options.auth = auth;
            // During an election that a busy machine causes, a call would be refused for another reason.
            options.raft.election_timeout_ms_min = 3_000;
            options.raft.election_timeout_ms_max = 6_000;
            change(options);
        })
        .await;
        until("a cluster version with identities", async || {
            let statuses = cluster.statuses().await;
            (statuses.len() == 3 && statuses.values().all(|status| status.cluster_version >= 2)).then_some(())
        })
        .await;
        Self { cluster, directory }
    }

    pub(crate) fn policy_file(&self) -> std::path::PathBuf {
        self.path().join("policy.toml")
    }

    pub(crate) fn tokens_file(&self) -> std::path::PathBuf {
        self.path().join("tokens.toml")
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A client of all nodes with the token of this identity; `None`: anonymous.
    pub(crate) fn client(&self, identity: Option<&str>) -> Client {
        let builder = Client::builder(&self.cluster.endpoints().join(",")).call_limit(LONG);
        match identity {
            None => builder,
            Some(name) => builder.token(token(name).reveal()),
        }
        .build()
        .expect("the endpoints are valid")
    }

    pub(crate) async fn session(&self, identity: Option<&str>) -> Session {
        self.client(identity).open(options()).await.expect("a session")
    }

    /// Sends calls as an identity to one node, without a client's retries.
    pub(crate) async fn sessions(&self, node_id: u64) -> SessionsClient<tonic::transport::Channel> {
        SessionsClient::new(self.cluster.node(node_id).channel().await.expect("it serves"))
    }

    pub(crate) async fn locks(&self, node_id: u64) -> LocksClient<tonic::transport::Channel> {
        LocksClient::new(self.cluster.node(node_id).channel().await.expect("it serves"))
    }
}

pub(crate) fn options() -> SessionOptions {
    SessionOptions { ttl: Duration::from_secs(600), label: "test".to_owned() }
}

/// A request with the token of this identity.
pub(crate) fn from<T>(identity: Option<&str>, message: T) -> Request<T> {
    with_token(identity.map(|name| token(name).reveal().to_owned()).as_deref(), message)
}

/// A request with this token.
pub(crate) fn with_token<T>(token: Option<&str>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(LONG);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("a header"));
    }
    request
}

pub(crate) fn open(session: &str) -> OpenSessionRequest {
    OpenSessionRequest { session_id: session.to_owned(), ttl_ms: 600_000, label: "test".to_owned() }
}

pub(crate) fn acquire(session: &str, name: &str) -> AcquireRequest {
    let want = Want { name: name.to_owned(), ..Want::default() };
    AcquireRequest { session_id: session.to_owned(), locks: vec![want], ..AcquireRequest::default() }
}

/// Acquires of this lock that wait at each node for as long as it takes, by sessions of this identity. Somebody else must hold the lock.
pub(crate) async fn waits_at_all_nodes(stage: &Stage, who: &'static str, name: &str) -> Vec<JoinHandle<Status>> {
    let mut waits = Vec::new();
    for node_id in 1..=3 {
        let session = format!("{:032x}", 0xaa00 + node_id);
        stage.sessions(node_id).await.open(from(Some(who), open(&session))).await.expect("opened");
        let wait = Some(Wait::WaitForever(true));
        let id = Some(RequestId { id: 1, lowest: 1, ..RequestId::default() });
        let mut request = from(Some(who), AcquireRequest { wait, request: id, ..acquire(&session, name) });
        request.set_timeout(2 * LONG);
        let mut locks = stage.locks(node_id).await;
        waits.push(tokio::spawn(async move { locks.acquire(request).await.expect_err("it is not granted") }));
    }

    let operator = stage.client(Some("ops"));
    until("all of them wait", async || {
        let found = operator.get(name).await.ok()?;
        (found.lock.queue_length == 3).then_some(())
    })
    .await;
    waits
}

/// The reason of a refusal, as the protocol names it.
pub(crate) fn reason(status: &Status) -> String {
    use tonic_types::StatusExt as _;
    status.get_details_error_info().map_or_else(|| format!("{status:?}"), |info| info.reason)
}

/// The refusal of a client's call.
pub(crate) fn refusal<T: std::fmt::Debug>(answer: Result<T, Error>) -> Refusal {
    match answer {
        Err(Error::Refused(refused)) => refused.reason,
        other => panic!("it was not refused: {other:?}"),
    }
}

/// How a stream ends.
pub(crate) async fn end<T>(mut stream: Streaming<T>) -> Status {
    let ended = timeout(LONG, async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ended without a reason"),
                Err(status) => break status,
            }
        }
    });
    ended.await.expect("it ends")
}
