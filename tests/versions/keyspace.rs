//! The keyspace at the leader's peers' port, where followers forward its requests: commits, pages, owners of leases, and the cluster
//! version that it needs.

use lockkeeper::{
    machine::{
        Key, KeyRange, Put, PutLease, SessionId, TXN_OPERATIONS_MAX, Txn, TxnOperation, VALUE_BYTES_MAX, Value,
        Version, Versions,
    },
    proto::v1::{OpenSessionRequest, sessions_client::SessionsClient},
    raft::messages::keyspace_client::KeyspaceClient,
    table::{
        codec::transactions::write_txn,
        messages::{self as pb, txn_operation::Kind},
    },
};
use tonic::{Code, Request, Response, Status, transport::Channel};

use super::nodes::Cluster;
use crate::support::{LONG, until};

const TODAY: Versions = Versions::OWN;
/// A program from before the keyspace.
const BEFORE: Versions = Versions { lowest: Version::FIRST, highest: Version(Version::KEYSPACE.0 - 1) };

fn key(key: &str) -> Key {
    Key::new(key.as_bytes()).expect("in bounds")
}

fn put(name: &str, bytes: usize) -> TxnOperation {
    let value = Value::new(&vec![7; bytes]).expect("in bounds");
    TxnOperation::Put(Put { key: key(name), value, lease: PutLease::None, claims: None })
}

fn txn(then: Vec<TxnOperation>) -> pb::Txn {
    write_txn(&Txn::new(vec![], then, vec![]).expect("in bounds"))
}

/// Asks the node that leads, whichever it is by then.
async fn ask<T>(
    cluster: &Cluster,
    mut call: impl AsyncFnMut(Channel) -> Result<Response<T>, Status>,
) -> Result<T, Status> {
    until("an answer from a leader", async || {
        let address = cluster.peer_address(cluster.leader().await.node_id());
        let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address").timeout(LONG);
        match call(endpoint.connect().await.ok()?).await {
            Err(status) if status.code() == Code::Unavailable => None,
            answer => Some(answer.map(Response::into_inner)),
        }
    })
    .await
}

async fn commit(cluster: &Cluster, txn: pb::Txn) -> Result<pb::Committed, Status> {
    ask(cluster, async |channel| KeyspaceClient::new(channel).commit(txn.clone()).await).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_transaction_waits_until_all_members_know_the_keyspace() {
    let mut cluster = Cluster::start(&[TODAY, TODAY, BEFORE]).await;
    cluster.reaches(BEFORE.highest).await;
    let refused = commit(&cluster, txn(vec![put("a", 1)])).await.expect_err("node 3 does not know it");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains(&format!("needs version {}", Version::KEYSPACE)), "{refused}");

    cluster.restart(3, TODAY).await;
    cluster.reaches(TODAY.highest).await;
    let committed = commit(&cluster, txn(vec![put("a", 1)])).await.expect("all members know it");
    assert!(committed.succeeded && committed.revision > 0);
    cluster.agree().await;
    // It has the transaction in its log.
    let refused = cluster.restart_to_its_end(3, BEFORE).await;
    assert!(refused.contains("install a later version of Lockkeeper on this node"), "{refused}");
    cluster.restart(3, TODAY).await;
    cluster.agree().await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn entries_are_read_in_pages_that_fit_into_a_message_and_survive_in_snapshots() {
    let mut cluster = Cluster::start(&[TODAY, TODAY, TODAY]).await;
    cluster.reaches(TODAY.highest).await;
    let names = ["a", "b", "c", "d"];
    let mut last = 0;
    for name in names {
        let revision = commit(&cluster, txn(vec![put(name, VALUE_BYTES_MAX)])).await.expect("committed").revision;
        assert!(revision > last, "revision {revision} after {last}");
        last = revision;
    }
    let keys = ["d", "no such key", "c", "b", "a"].map(|key| key.as_bytes().to_vec().into()).to_vec();
    let get = pb::GetEntries { keys, ..Default::default() };
    let found = ask(&cluster, async |channel| KeyspaceClient::new(channel).get(get.clone()).await).await;
    let found = found.expect("answered");
    let is_there: Vec<_> = found.entries.iter().map(|entry| entry.entry.is_some()).collect();
    assert_eq!(is_there, [true, false, true, true], "the fourth entry reaches the limit of a page");
    assert!(found.revision >= last);

    let list = async |backwards, page_size, from: &'static str| {
        let range = Some(pb::KeyRange { from: from.as_bytes().into(), to: Default::default() });
        let list = pb::ListEntries { range, backwards, page_size, ..Default::default() };
        let page = ask(&cluster, async |channel| KeyspaceClient::new(channel).list(list.clone()).await).await;
        let page = page.expect("answered");
        let keys = page.entries.iter().map(|entry| String::from_utf8_lossy(&entry.key).into_owned());
        (keys.collect::<Vec<_>>().concat(), page.more)
    };
    assert_eq!(list(false, 0, "").await, ("abc".to_owned(), true));
    assert_eq!(list(false, 0, "c\0").await, ("d".to_owned(), false));
    assert_eq!(list(true, 0, "").await, ("dcb".to_owned(), true));
    assert_eq!(list(true, 2, "").await, ("dc".to_owned(), true));
    assert_eq!(list(true, 2, "c").await, ("dc".to_owned(), false));

    let of_lease = |at_revision, leased_by: &[u8]| {
        let list = pb::ListEntries { at_revision, leased_by: leased_by.to_vec().into(), ..Default::default() };
        async move |channel: Channel| KeyspaceClient::new(channel).list(list.clone()).await
    };
    let none = ask(&cluster, of_lease(None, &[7; 16])).await.expect("answered");
    assert_eq!((none.entries.len(), none.more), (0, false), "none has this lease");
    for (at, session, field) in [(Some(last), &[7; 16][..], "at_revision"), (None, &[7; 15], "leased_by")] {
        let refused = ask(&cluster, of_lease(at, session)).await.expect_err("it cannot be answered");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(field), "{refused}");
    }

    // Until the log no longer has the transactions: node 3 reads the entries from a snapshot.
    for number in 0..40 {
        cluster.acquire(&format!("many/{number}")).await;
    }
    cluster.has_purged(3).await;
    cluster.stop(3).await;
    cluster.restart(3, TODAY).await;
    cluster.agree().await;
    for replica in cluster.replicas() {
        let entries = replica.table().read(|applied| applied.machine.entries(&KeyRange::default()).count());
        assert_eq!(entries, names.len(), "at node {}", replica.node_id());
    }
    cluster.end().await;
}

/// As followers forward: with the identity of the client in the metadata.
fn from_client<T>(message: T, identity: &'static str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("lockkeeper-client-identity", identity.parse().expect("a value"));
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn only_its_owner_uses_a_session_as_a_lease() {
    let cluster = Cluster::start(&[TODAY, TODAY, TODAY]).await;
    cluster.reaches(TODAY.highest).await;
    let id = SessionId(7);
    let open = OpenSessionRequest { session_id: id.to_string(), ttl_ms: LONG.as_millis() as u32, ..Default::default() };
    let open = async |channel| SessionsClient::new(channel).open(from_client(open.clone(), "ann")).await;
    ask(&cluster, open).await.expect("opened");
    let commit = async |txn: pb::Txn, identity| {
        let commit = async |channel| KeyspaceClient::new(channel).commit(from_client(txn.clone(), identity)).await;
        ask(&cluster, commit).await
    };

    let leased = |session: SessionId| {
        let mut txn = txn(vec![put("a", 1)]);
        let Some(Kind::Put(put)) = &mut txn.then[0].kind else { panic!("it puts") };
        let session = session.0.to_be_bytes().to_vec().into();
        let at_end = pb::AtLeaseEnd::Delete.into();
        put.lease = Some(pb::Lease { session, at_end });
        txn
    };
    // Also where the branch does not run.
    let otherwise = pb::Txn { otherwise: leased(id).then, ..Default::default() };
    for txn in [leased(id), otherwise] {
        let refused = commit(txn.clone(), "bob").await.expect_err("the session is ann's");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        commit(txn, "ann").await.expect("the session is ann's");
    }
    let refused = commit(leased(SessionId(8)), "bob").await.expect_err("there is none");
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    // Whatever the message says, the session is that of the client that commits.
    let (session, ttl_ms, owner) =
        (SessionId(9).0.to_be_bytes().to_vec().into(), LONG.as_millis() as u32, "ann".to_owned());
    let open = Kind::Open(pb::NewSession { session, ttl_ms, owner, ..Default::default() });
    let mut opening = leased(SessionId(9));
    opening.then.insert(0, pb::TxnOperation { kind: Some(open) });
    commit(opening, "bob").await.expect("it opens its own");
    let refused = commit(leased(SessionId(9)), "ann").await.expect_err("the session is bob's");
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    commit(leased(SessionId(9)), "bob").await.expect("the session is bob's");
    let get = pb::TxnOperation { kind: Some(Kind::Get(b"a".to_vec().into())) };
    let too_many = pb::Txn { then: vec![get; TXN_OPERATIONS_MAX + 1], ..Default::default() };
    let refused = commit(too_many, "ann").await.expect_err("one too many");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    cluster.end().await;
}
