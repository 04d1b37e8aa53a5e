//! Services for generic gRPC clients: health, reflection, the leader's address in the metadata, answers from any node.

use lockkeeper::proto::{
    LEADER_KEY,
    v1::{GetRequest, locks_client::LocksClient},
};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient, server_reflection_request,
    server_reflection_response,
};

use crate::support::{client, cluster, leader, long_session, steady_cluster, until};

#[tokio::test(flavor = "multi_thread")]
async fn any_node_answers_and_names_the_leader() {
    let cluster = steady_cluster().await;
    let leading = leader(&cluster).await;
    let leader_address = cluster.node(leading).config().client_listen.clone();
    let session = long_session(&client(&cluster)).await;
    let held = session.acquire("seat").await.expect("free");
    for node in cluster.nodes() {
        let mut locks = LocksClient::new(node.channel().await.expect("it serves"));
        let request = GetRequest { name: "seat".to_string(), ..GetRequest::default() };
        let response = locks.get(request).await.expect("any node answers");
        assert_eq!(response.metadata().get(LEADER_KEY).expect("the leader is named"), leader_address.as_str());
        let lock = response.into_inner().lock.expect("a lock");
        assert_eq!(lock.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [held.token().0]);
        let bad = locks.get(GetRequest::default()).await.expect_err("no name");
        assert_eq!(bad.metadata().get(LEADER_KEY).expect("also in errors"), leader_address.as_str());
    }
    held.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_healthy_only_while_it_can_serve() {
    let mut cluster = cluster().await;
    let leading = leader(&cluster).await;
    let mut health = HealthClient::new(cluster.node(leading).channel().await.expect("it serves"));
    let mut ask = async || {
        let request = HealthCheckRequest { service: "lockkeeper.v1.Locks".to_string() };
        health.check(request).await.expect("it answers").into_inner().status()
    };
    let deadline = tokio::time::Instant::now() + crate::support::LONG;
    while ask().await != ServingStatus::Serving {
        assert!(tokio::time::Instant::now() < deadline, "it says that it does not serve, and does");
    }
    for id in (1..=3).filter(|id| *id != leading) {
        cluster.node_mut(id).kill().await;
    }
    let deadline = tokio::time::Instant::now() + crate::support::LONG;
    while ask().await == ServingStatus::Serving {
        assert!(tokio::time::Instant::now() < deadline, "it says that it serves, without a quorum");
    }
    let status = cluster.node(leading).status().await.expect("status needs no quorum");
    assert!(!status.serving && !status.trouble.is_empty(), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_lists_the_services() {
    let cluster = steady_cluster().await;
    let mut reflection = ServerReflectionClient::new(cluster.node(1).channel().await.expect("it serves"));
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(server_reflection_request::MessageRequest::ListServices(String::new())),
    };
    let mut answers =
        reflection.server_reflection_info(tokio_stream::iter([request])).await.expect("it answers").into_inner();
    let answer = answers.message().await.expect("it answers").expect("one answer").message_response;
    let Some(server_reflection_response::MessageResponse::ListServicesResponse(list)) = answer else {
        panic!("{answer:?}");
    };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    for name in ["lockkeeper.v1.Sessions", "lockkeeper.v1.Locks", "lockkeeper.v1.Cluster", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|listed| listed == name), "{name} is not among {names:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_stopped_hands_over_its_waits() {
    let mut cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let held = session.acquire("seat").await.expect("free");
    let waiting = tokio::spawn(session.acquire("seat").into_future());
    until("the waiter", async || {
        let lock = client.get("seat").await.ok()?.lock;
        (lock.queue_length == 1).then_some(())
    })
    .await;
    let leading = leader(&cluster).await;
    let ended = cluster.node_mut(leading).stop().await.expect("it was running");
    assert!(ended.success(), "{ended:?}");
    // The wait stayed in the table, and the client repeated its call at the new leader.
    held.release().await.expect("it was held throughout");
    waiting.await.expect("no panic").expect("granted").release().await.expect("it was held");
}
