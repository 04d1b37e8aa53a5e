//! Invalid requests get a clear error, and change nothing.

use std::{collections::BTreeMap, time::Duration};

use lockkeeper::proto::v1::{
    AcquireRequest, CheckRequest, CloseSessionRequest, ForceReleaseRequest, GetRequest, GetResponse,
    ListSessionsRequest, Mode, OpenSessionRequest, ReleaseRequest, RenewSessionRequest, RequestId, UpdateRequest, Want,
    WatchRequest, acquire_request, locks_client::LocksClient, mode, release_request, sessions_client::SessionsClient,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::{Code, Status, transport::Channel};
use tonic_types::StatusExt;

use crate::support::{LONG, client, long_session, steady_cluster};

struct Clients {
    sessions: SessionsClient<Channel>,
    locks: LocksClient<Channel>,
    session: String,
}

impl Clients {
    async fn new(channel: Channel) -> Self {
        let mut sessions = SessionsClient::new(channel.clone());
        let request = OpenSessionRequest { ttl_ms: 600_000, ..OpenSessionRequest::default() };
        let session = sessions.open(request).await.expect("a session").into_inner().session_id;
        Self { sessions, locks: LocksClient::new(channel), session }
    }

    fn acquire_of(&self, locks: Vec<Want>) -> AcquireRequest {
        AcquireRequest { session_id: self.session.clone(), locks, ..AcquireRequest::default() }
    }

    async fn acquire(&mut self, request: AcquireRequest) -> Result<(), Status> {
        self.locks.acquire(request).await.map(drop)
    }
}

fn want(name: &str) -> Want {
    Want { name: name.to_string(), ..Want::default() }
}

fn permit(name: &str, limit: u32) -> Want {
    let kind = mode::Kind::Permit(mode::Permit { limit });
    Want { mode: Some(Mode { kind: Some(kind) }), ..want(name) }
}

/// Asserts the code, the reason, and words of the message.
fn assert_says(outcome: Result<(), Status>, code: Code, reason: &str, words: &[&str]) {
    let status = outcome.expect_err(reason);
    let info = status.get_details_error_info().unwrap_or_else(|| panic!("{status:?} has no reason"));
    assert_eq!((status.code(), info.reason.as_str()), (code, reason), "{status:?}");
    assert_eq!(info.domain, "lockkeeper.v1");
    assert_eq!(info.metadata.get("retry").map(String::as_str), Some("no"), "{status:?}");
    for word in words {
        assert!(status.message().contains(word), "{:?} does not say {word:?}", status.message());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_invalid_request_gets_an_error_that_names_the_fault() {
    let cluster = steady_cluster().await;
    // At the leader, and through followers.
    for node in cluster.nodes() {
        let mut clients = Clients::new(node.channel().await.expect("it serves")).await;
        bad_acquires(&mut clients).await;
        bad_sessions(&mut clients).await;
        bad_tokens(&mut clients).await;
        bad_requests(&mut clients).await;
    }
}

async fn bad_acquires(clients: &mut Clients) {
    const INVALID: (Code, &str) = (Code::InvalidArgument, "INVALID_ARGUMENT");
    let long = "x".repeat(513);
    let twice = vec![want("a"), want("b"), want("a")];
    let many = (0..65).map(|number| want(&format!("many/{number}"))).collect();
    let large = vec![Want { data: Some(vec![0; 16 * 1024 + 1]), ..want("a") }];
    let cases: Vec<(Vec<Want>, &[&str])> = vec![
        (vec![want("")], &["name is empty", "1 to 512"]),
        (vec![want(&long)], &["513 bytes", "512"]),
        (vec![want("a\0b")], &["NUL"]),
        (vec![], &["number of locks", "1 to 64"]),
        (twice, &["\"a\"", "named twice"]),
        (many, &["65", "1 to 64"]),
        (large, &["16385 bytes", "16384"]),
        (vec![Want { mode: Some(Mode { kind: None }), ..want("a") }], &["locks.mode", "\"a\"", "does not know"]),
        (vec![permit("a", 0)], &["permits is 0"]),
        (vec![permit("a", 1_000_001)], &["1000001"]),
    ];
    for (locks, words) in cases {
        assert_says(clients.acquire(clients.acquire_of(locks)).await, INVALID.0, INVALID.1, words);
    }
    let too_long = Some(acquire_request::Wait::WaitMs(604_800_001));
    let request = AcquireRequest { wait: too_long, ..clients.acquire_of(vec![want("a")]) };
    assert_says(clients.acquire(request).await, INVALID.0, INVALID.1, &["wait_ms", "604800001"]);
    let request = AcquireRequest { lock_delay_ms: 3_600_001, ..clients.acquire_of(vec![want("a")]) };
    assert_says(clients.acquire(request).await, INVALID.0, INVALID.1, &["lock_delay_ms", "3600001"]);
    let watched = WatchRequest { prefix: long.clone(), ..WatchRequest::default() };
    assert_says(clients.locks.watch(watched).await.map(drop), INVALID.0, INVALID.1, &["prefix", "513", "512"]);
    let get = clients.locks.get(GetRequest { name: "a".repeat(600), ..GetRequest::default() }).await.map(drop);
    assert_says(get, INVALID.0, INVALID.1, &["600 bytes"]);
}

async fn bad_sessions(clients: &mut Clients) {
    let open = |ttl_ms, session_id: &str, label: String| OpenSessionRequest {
        ttl_ms,
        session_id: session_id.to_string(),
        label,
    };
    let cases = [
        (open(0, "", String::new()), "TTL in milliseconds is 0"),
        (open(86_400_001, "", String::new()), "86400001"),
        (open(1000, "xyz", String::new()), "32 hexadecimal digits"),
        (open(1000, "", "x".repeat(257)), "257 bytes"),
    ];
    for (request, word) in cases {
        let outcome = clients.sessions.open(request).await.map(drop);
        assert_says(outcome, Code::InvalidArgument, "INVALID_ARGUMENT", &[word]);
    }

    let list = ListSessionsRequest { last_session_id: "xyz".to_owned(), ..ListSessionsRequest::default() };
    let listed = clients.sessions.list(list).await.map(drop);
    assert_says(listed, Code::InvalidArgument, "INVALID_ARGUMENT", &["last_session_id", "32 hexadecimal digits"]);

    let unknown = AcquireRequest { session_id: "0".repeat(32), ..clients.acquire_of(vec![want("a")]) };
    assert_says(clients.acquire(unknown).await, Code::NotFound, "SESSION_UNKNOWN", &["no such session"]);

    let other = open(60_000, "", String::new());
    let closed = clients.sessions.open(other).await.expect("opened").into_inner().session_id;
    clients
        .sessions
        .close_session(CloseSessionRequest { session_id: closed.clone(), reason: String::new() })
        .await
        .expect("closed");
    let late = AcquireRequest { session_id: closed.clone(), ..clients.acquire_of(vec![want("a")]) };
    assert_says(clients.acquire(late).await, Code::NotFound, "SESSION_CLOSED", &["closed"]);
    let renewed = clients.sessions.renew(RenewSessionRequest { session_id: closed }).await.map(drop);
    assert_says(renewed, Code::NotFound, "SESSION_CLOSED", &["closed"]);

    let short = open(100, "", String::new());
    let expired = clients.sessions.open(short).await.expect("opened").into_inner().session_id;
    let deadline = tokio::time::Instant::now() + LONG;
    let outcome = loop {
        let late = AcquireRequest { session_id: expired.clone(), ..clients.acquire_of(vec![want("a")]) };
        match clients.acquire(late).await {
            Ok(()) => assert!(tokio::time::Instant::now() < deadline, "it never expires"),
            refused => break refused,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_says(outcome, Code::NotFound, "SESSION_EXPIRED", &["not renewed"]);

    let mine = open(1000, &clients.session, "another label".to_string());
    let outcome = clients.sessions.open(mine).await.map(drop);
    assert_says(outcome, Code::AlreadyExists, "SESSION_EXISTS", &["another session"]);
}

async fn bad_tokens(clients: &mut Clients) {
    let release = |target| ReleaseRequest { session_id: clients.session.clone(), target, ..ReleaseRequest::default() };
    let cases = [
        (release(Some(release_request::Target::Token(u64::MAX))), Code::FailedPrecondition, "NOT_HELD"),
        (release(Some(release_request::Target::Token(0))), Code::InvalidArgument, "INVALID_ARGUMENT"),
        (release(None), Code::InvalidArgument, "INVALID_ARGUMENT"),
    ];
    for (request, code, reason) in cases {
        assert_says(clients.locks.release(request).await.map(drop), code, reason, &["token"]);
    }
    let update = UpdateRequest {
        session_id: clients.session.clone(),
        token: u64::MAX,
        name: "a".to_string(),
        ..UpdateRequest::default()
    };
    let outcome = clients.locks.update(update).await.map(drop);
    assert_says(outcome, Code::FailedPrecondition, "NOT_HELD", &["not"].map(|_| "held"));
    let check = clients.locks.check(CheckRequest { name: "a".to_string(), token: 0 }).await.map(drop);
    assert_says(check, Code::InvalidArgument, "INVALID_ARGUMENT", &["token"]);
    let force = ForceReleaseRequest { name: "a".to_string(), ..ForceReleaseRequest::default() };
    let outcome = clients.locks.force_release(force).await.map(drop);
    assert_says(outcome, Code::InvalidArgument, "INVALID_ARGUMENT", &["reason is empty"]);

    clients.acquire(clients.acquire_of(vec![permit("pool", 3)])).await.expect("one of three");
    let outcome = clients.acquire(clients.acquire_of(vec![permit("pool", 4)])).await;
    assert_says(outcome, Code::FailedPrecondition, "MODE_MISMATCH", &["\"pool\"", "semaphore of 3"]);
    let outcome = clients.acquire(clients.acquire_of(vec![want("pool")])).await;
    assert_says(outcome, Code::FailedPrecondition, "MODE_MISMATCH", &["\"pool\"", "semaphore of 3"]);
    let outcome = clients.acquire(clients.acquire_of(vec![Want { must_exist: true, ..want("typo") }])).await;
    assert_says(outcome, Code::NotFound, "LOCK_UNKNOWN", &["\"typo\"", "does not exist"]);
    clients.acquire(clients.acquire_of(vec![Want { must_exist: true, ..permit("pool", 3) }])).await.expect("it exists");
    // The next node's round begins with an empty pool.
    clients
        .sessions
        .close_session(CloseSessionRequest { session_id: clients.session.clone(), reason: String::new() })
        .await
        .expect("closed");
    let request = OpenSessionRequest { ttl_ms: 600_000, ..OpenSessionRequest::default() };
    clients.session = clients.sessions.open(request).await.expect("a session").into_inner().session_id;
}

async fn bad_requests(clients: &mut Clients) {
    let keeping = |id, lowest, kept: &[u64], name: &str| AcquireRequest {
        request: Some(RequestId { id, lowest, kept: kept.to_vec() }),
        ..clients.acquire_of(vec![want(name)])
    };
    let numbered = |id, lowest, name: &str| keeping(id, lowest, &[], name);
    let too_many: Vec<u64> = (1..=1025).collect();
    let kept: [(u64, &[u64]); 5] = [(9, &[2, 1]), (9, &[3, 3]), (9, &[0]), (9, &[9]), (2000, &too_many)];
    let badly_kept = kept.map(|(lowest, kept)| keeping(2000, lowest, kept, "n/1"));
    let zero = numbered(0, 0, "n/1");
    let above = keeping(2, 3, &[1], "n/1");
    let first = numbered(5, 5, "n/1");
    let other = numbered(5, 5, "n/2");
    let stale = numbered(4, 1, "n/1");
    for request in badly_kept {
        assert_says(clients.acquire(request).await, Code::InvalidArgument, "INVALID_ARGUMENT", &["request.kept"]);
    }
    assert_says(clients.acquire(zero).await, Code::InvalidArgument, "INVALID_ARGUMENT", &["request.id"]);
    assert_says(clients.acquire(above).await, Code::InvalidArgument, "INVALID_ARGUMENT", &["request.lowest"]);
    clients.acquire(first).await.expect("granted");
    assert_says(clients.acquire(other).await, Code::FailedPrecondition, "REQUEST_REUSED", &["used before"]);
    assert_says(clients.acquire(stale).await, Code::FailedPrecondition, "REQUEST_STALE", &["below 5"]);
    clients
        .sessions
        .close_session(CloseSessionRequest { session_id: clients.session.clone(), reason: String::new() })
        .await
        .expect("closed");
}

/// Sends a name that is not UTF-8. Clients generated from the proto cannot do that, so the message here declares the name as bytes.
async fn not_utf8(channel: Channel) {
    #[derive(Clone, PartialEq, prost::Message)]
    struct GetBytes {
        #[prost(bytes, tag = "1")]
        name: Vec<u8>,
    }
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.expect("it serves");
    let path = "/lockkeeper.v1.Locks/Get".parse().expect("a path");
    let codec = tonic_prost::ProstCodec::<GetBytes, GetResponse>::default();
    let outcome = grpc.unary(tonic::Request::new(GetBytes { name: vec![b'a', 0xff] }), path, codec).await.map(drop);
    assert_says(outcome, Code::InvalidArgument, "INVALID_ARGUMENT", &["GetRequest.name", "UTF-8"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_and_oversized_messages_affect_no_other_client() {
    let cluster = steady_cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let held = session.acquire("seat").await.expect("free");
    let terms: BTreeMap<u64, u64> = cluster.statuses().await.iter().map(|(id, status)| (*id, status.term)).collect();

    for member in cluster.nodes().filter_map(|node| node.config().this_member()) {
        for address in [&member.client_address, &member.peer_address] {
            for garbage in
                [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 4096], &[0; 100_000], b"PRI * HTTP/2.0\r\n\r\n"]
            {
                let mut stream = TcpStream::connect(address).await.expect("it listens");
                // The node may close the connection during the write.
                let _ = stream.write_all(garbage).await;
                let _ = stream.shutdown().await;
                let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut Vec::new())).await.expect("it hangs up");
            }
        }
    }
    let channel = cluster.node(1).channel().await.expect("it serves");
    let mut locks = LocksClient::new(channel).max_encoding_message_size(usize::MAX);
    let request = AcquireRequest {
        session_id: session.id().to_string(),
        locks: vec![Want { data: Some(vec![0; 8 * 1024 * 1024]), ..want("large") }],
        ..AcquireRequest::default()
    };
    let outcome = locks.acquire(request).await.map(drop);
    assert_says(outcome, Code::ResourceExhausted, "LIMIT_REACHED", &["8388", "2097152", "fewer locks"]);
    not_utf8(cluster.node(1).channel().await.expect("it serves")).await;

    let check = client.check("seat", held.token()).await.expect("the cluster answers");
    assert!(check.held);
    let after: BTreeMap<u64, u64> = cluster.statuses().await.iter().map(|(id, status)| (*id, status.term)).collect();
    assert_eq!(terms, after, "an election took place");
    held.release().await.expect("it was held");
}
