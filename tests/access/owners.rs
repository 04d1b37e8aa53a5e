//! Sessions belong to the identity that opened them.

use lockkeeper::{
    client::Refusal,
    proto::v1::{
        CloseSessionRequest, ReleaseRequest, RenewSessionRequest, RequestId, UpdateRequest, release_request::Target,
    },
};
use tonic::Code;

use super::stage::{POLICY, Stage, acquire, from, open, options, reason, refusal};
use crate::support::{LONG, leader, until};

const ID: &str = "000000000000000000000000000000aa";
const NOBODYS: &str = "000000000000000000000000000000bb";

fn request(id: u64) -> Option<RequestId> {
    Some(RequestId { id, lowest: 1, ..RequestId::default() })
}

/// Another identity knows the session's id, the grant's token and the request's id, and can do nothing with them, at no node. So with none.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_knows_all_ids_of_a_session_cannot_use_it() {
    let stage = Stage::new(Some(POLICY)).await;
    let mut owner = stage.locks(1).await;
    stage.sessions(1).await.open(from(Some("shop-1"), open(ID))).await.expect("opened");
    let wanted = || lockkeeper::proto::v1::AcquireRequest { request: request(7), ..acquire(ID, "seats/1") };
    let granted = owner.acquire(from(Some("shop-1"), wanted())).await.expect("free").into_inner();
    let Some(lockkeeper::proto::v1::acquire_response::Outcome::Granted(grant)) = granted.outcome else {
        panic!("{granted:?}")
    };
    for node_id in 1..=3 {
        for thief in [Some("shop-2"), None] {
            let (mut sessions, mut locks) = (stage.sessions(node_id).await, stage.locks(node_id).await);
            let session_id = || ID.to_owned();
            let release =
                |target| ReleaseRequest { session_id: session_id(), target: Some(target), ..Default::default() };
            let update = UpdateRequest {
                session_id: session_id(),
                token: grant.token,
                name: "seats/1".to_owned(),
                data: Some(b"mine".to_vec()),
                ..Default::default()
            };
            let answers = [
                sessions.renew(from(thief, RenewSessionRequest { session_id: session_id() })).await.err(),
                sessions
                    .close_session(from(thief, CloseSessionRequest { session_id: session_id(), ..Default::default() }))
                    .await
                    .err(),
                sessions.open(from(thief, open(ID))).await.err(),
                locks.acquire(from(thief, wanted())).await.err(),
                locks.acquire(from(thief, acquire(ID, "seats/2"))).await.err(),
                locks.release(from(thief, release(Target::Token(grant.token)))).await.err(),
                locks.release(from(thief, release(Target::AcquireRequestId(7)))).await.err(),
                locks.update(from(thief, update)).await.err(),
            ];
            for (index, status) in answers.into_iter().enumerate() {
                let status =
                    status.unwrap_or_else(|| panic!("request {index} of {thief:?} at node {node_id} was accepted"));
                let refused = ["NOT_OWNER", "PERMISSION_DENIED", "SESSION_EXISTS"].contains(&reason(&status).as_str());
                assert!(refused, "request {index} of {thief:?} at node {node_id}: {status:?}");
                assert!(thief.is_none() || index == 2 || reason(&status) == "NOT_OWNER", "{index}: {status:?}");
            }
        }
    }
    let check =
        stage.client(Some("ops")).check("seats/1", lockkeeper_types::Token(grant.token)).await.expect("answered");
    assert!(check.held, "the owner still holds it");
    let released =
        ReleaseRequest { session_id: ID.to_owned(), target: Some(Target::Token(grant.token)), ..Default::default() };
    owner.release(from(Some("shop-1"), released)).await.expect("by its owner");
}

/// A keep-alive stream with another identity's session ends with the refusal.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_renews_no_session_of_another_identity() {
    let stage = Stage::new(None).await;
    stage.sessions(1).await.open(from(Some("shop-1"), open(ID))).await.expect("opened");
    for node_id in 1..=3 {
        let renewal = lockkeeper::proto::v1::KeepAliveRequest { session_id: ID.to_owned(), sequence: 1 };
        let renewals = tokio_stream::StreamExt::chain(tokio_stream::once(renewal), tokio_stream::pending());
        let mut stream = stage
            .sessions(node_id)
            .await
            .keep_alive(from(Some("shop-2"), renewals))
            .await
            .expect("a stream")
            .into_inner();
        let status = stream.message().await.expect_err("the renewal is refused");
        assert_eq!((status.code(), reason(&status).as_str()), (Code::PermissionDenied, "NOT_OWNER"), "{status:?}");
    }
}

/// The owner is part of the table: a new leader knows it, and so does a node that starts from its disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_keeps_its_owner_when_the_leader_changes_and_all_nodes_restart() {
    let mut stage = Stage::new(None).await;
    stage.sessions(1).await.open(from(Some("shop-1"), open(ID))).await.expect("opened");
    let close = || CloseSessionRequest { session_id: ID.to_owned(), ..Default::default() };
    let first = leader(&stage.cluster).await;
    stage.cluster.node_mut(first).kill().await;
    let second = until("another leader", async || {
        let statuses = stage.cluster.statuses().await;
        statuses
            .values()
            .find(|status| status.leader_id == status.node_id && status.serving)
            .map(|status| status.node_id)
    })
    .await;
    let status =
        stage.sessions(second).await.close_session(from(Some("shop-2"), close())).await.expect_err("not its own");
    assert_eq!(reason(&status), "NOT_OWNER", "{status:?}");
    stage.cluster.kill().await;
    for node_id in 1..=3 {
        stage.cluster.node_mut(node_id).spawn().expect("it starts");
    }
    stage.cluster.ready(LONG).await.expect("it serves again");
    let shown = stage.client(None).sessions("").await.expect("answered").sessions;
    assert_eq!(shown[0].owner.as_deref(), Some("shop-1"));
    let at = leader(&stage.cluster).await;
    let status = stage.sessions(at).await.close_session(from(Some("shop-2"), close())).await.expect_err("not its own");
    assert_eq!(reason(&status), "NOT_OWNER", "{status:?}");
    stage.sessions(at).await.close_session(from(Some("shop-1"), close())).await.expect("its own");
}

/// An administrator closes the session of another identity; without a policy nobody is one. A session without an owner serves whoever
/// knows its id, as before identities.
#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_closes_others_sessions_and_an_ownerless_one_serves_all() {
    let stage = Stage::new(Some(POLICY)).await;
    stage.sessions(1).await.open(from(Some("shop-1"), open(ID))).await.expect("opened");
    let close = |id: &str| CloseSessionRequest { session_id: id.to_owned(), reason: "dead".to_owned() };
    stage.sessions(2).await.close_session(from(Some("ops"), close(ID))).await.expect("ops administers");
    drop(stage);

    let stage = Stage::new(None).await;
    for (id, owner) in [(ID, Some("shop-1")), (NOBODYS, None)] {
        stage.sessions(1).await.open(from(owner, open(id))).await.expect("opened");
    }
    let status =
        stage.sessions(2).await.close_session(from(Some("ops"), close(ID))).await.expect_err("without a policy");
    assert_eq!(reason(&status), "NOT_OWNER");
    stage.locks(3).await.acquire(from(Some("shop-2"), acquire(NOBODYS, "a"))).await.expect("anyone's");
    stage.sessions(3).await.close_session(from(Some("shop-2"), close(NOBODYS))).await.expect("anyone's");
}

/// A list shows the caller's own sessions; an administrator sees all.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_sessions_shows_the_callers_own() {
    let stage = Stage::new(Some(POLICY)).await;
    let _open = [stage.session(Some("shop-1")).await, stage.session(Some("shop-2")).await];
    let owners = async |who: &str| {
        let page = stage.client(Some(who)).sessions("").await.expect("answered");
        let mut owners: Vec<_> = page.sessions.into_iter().filter_map(|session| session.owner).collect();
        owners.sort();
        owners
    };
    assert_eq!(owners("shop-1").await, ["shop-1"]);
    assert_eq!(owners("shop-2").await, ["shop-2"]);
    assert_eq!(owners("ops").await, ["shop-1", "shop-2"]);
    assert_eq!(refusal(stage.client(None).open(options()).await), Refusal::PermissionDenied);
}
