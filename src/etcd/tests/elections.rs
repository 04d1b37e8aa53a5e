//! Elections that the server runs for its clients.

use std::time::Duration;

use futures::StreamExt as _;
use tokio::{task::JoinHandle, time::timeout};
use tonic::Streaming;

use super::*;
use crate::proto::{
    etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest},
    v3electionpb::{
        CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest, ResignRequest,
    },
};

const PATIENCE: Duration = Duration::from_secs(20);

async fn with_leases(leases: &[i64]) -> Api {
    let api = Api::new();
    for id in leases {
        api.lease().lease_grant(LeaseGrantRequest { ttl: 60, id: *id }).await.unwrap();
    }
    api
}

fn campaign(api: &Api, lease: i64, value: &str) -> JoinHandle<Result<CampaignResponse, Status>> {
    let (mut client, request) = (api.election(), CampaignRequest { name: b"chief".into(), lease, value: value.into() });
    tokio::spawn(async move { Ok(client.campaign(request).await?.into_inner()) })
}

async fn elected(campaign: JoinHandle<Result<CampaignResponse, Status>>) -> LeaderKey {
    timeout(PATIENCE, campaign).await.expect("in time").expect("no panic").expect("elected").leader.unwrap()
}

fn named() -> LeaderRequest {
    LeaderRequest { name: b"chief".into() }
}

async fn next(leaders: &mut Streaming<LeaderResponse>) -> (String, i64) {
    let leader = timeout(PATIENCE, leaders.next()).await.expect("in time").expect("one").expect("no error");
    let (header, kv) = (leader.header.unwrap(), leader.kv.unwrap());
    assert!(header.revision >= kv.mod_revision);
    (String::from_utf8(kv.value).unwrap(), kv.lease)
}

#[tokio::test]
async fn leaders_follow_each_other_and_observers_see_each_and_what_they_proclaim() {
    let api = with_leases(&[0x77, 0x11]).await;
    let mut early = api.election().observe(named()).await.unwrap().into_inner();
    let first = elected(campaign(&api, 0x77, "one")).await;
    assert_eq!((&first.key[..], first.lease, &first.name[..]), (&b"chief/77"[..], 0x77, &b"chief"[..]));
    assert_eq!(next(&mut early).await, ("one".to_owned(), 0x77));
    let mut late = api.election().observe(named()).await.unwrap().into_inner();
    assert_eq!(next(&mut late).await, ("one".to_owned(), 0x77));
    let second = campaign(&api, 0x11, "two");
    let leader = Some(first.clone());
    for value in ["1a", "1b"] {
        let proclaim = ProclaimRequest { leader: leader.clone(), value: value.into() };
        api.election().proclaim(proclaim).await.unwrap();
        let shown = api.election().leader(named()).await.unwrap().into_inner().kv.unwrap();
        assert_eq!((&shown.value[..], shown.create_revision), (value.as_bytes(), first.rev));
    }
    assert!(!second.is_finished());
    api.election().resign(ResignRequest { leader: leader.clone() }).await.unwrap();
    let second = elected(second).await;
    assert!(second.rev > first.rev);
    api.lease().lease_revoke(LeaseRevokeRequest { id: 0x11 }).await.unwrap();
    let third = elected(campaign(&api, 0x77, "three")).await;
    for observer in [&mut early, &mut late] {
        for expected in [("1a", 0x77), ("1b", 0x77), ("two", 0x11), ("three", 0x77)] {
            assert_eq!(next(observer).await, (expected.0.to_owned(), expected.1));
        }
    }
    let late = ProclaimRequest { leader, value: b"1c".into() };
    assert_eq!(shown(&api.election().proclaim(late).await.unwrap_err()), "9 election: not leader");
    let again = api.election().resign(ResignRequest { leader: Some(first) }).await;
    assert!(again.is_ok(), "it has nothing to give up");
    assert_eq!(api.election().leader(named()).await.unwrap().into_inner().kv.unwrap().create_revision, third.rev);
}

#[tokio::test]
async fn an_observer_sees_leaders_across_a_change_of_the_clusters() {
    let api = with_leases(&[0x77, 0x11]).await;
    let mut leaders = api.election().observe(named()).await.unwrap().into_inner();
    let first = elected(campaign(&api, 0x77, "one")).await;
    assert_eq!(next(&mut leaders).await.0, "one");
    api.store.be_leaderless(true);
    assert!(timeout(Duration::from_millis(120), leaders.next()).await.is_err());
    api.store.be_leaderless(false);
    api.election().resign(ResignRequest { leader: Some(first) }).await.unwrap();
    elected(campaign(&api, 0x11, "two")).await;
    assert_eq!(next(&mut leaders).await.0, "two");
}

#[tokio::test]
async fn a_candidate_that_comes_again_proclaims_its_new_value() {
    let api = with_leases(&[0x77]).await;
    let first = elected(campaign(&api, 0x77, "one")).await;
    let again = elected(campaign(&api, 0x77, "two")).await;
    assert_eq!(first.rev, again.rev);
    let shown = api.election().leader(named()).await.unwrap().into_inner().kv.unwrap();
    assert_eq!((&shown.value[..], shown.version), (&b"two"[..], 2));
}

#[tokio::test]
async fn a_candidate_that_is_gone_leaves_and_one_without_a_lease_fails() {
    let api = with_leases(&[0x77, 0x11, 0x55]).await;
    let first = elected(campaign(&api, 0x77, "one")).await;
    let (second, third) = (campaign(&api, 0x11, "two"), campaign(&api, 0x55, "three"));
    let queued = async {
        while api.kv().range(prefix("chief/")).await.unwrap().into_inner().count < 3 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, queued).await.expect("in time");
    second.abort();
    api.lease().lease_revoke(LeaseRevokeRequest { id: 0x55 }).await.unwrap();
    let error = timeout(PATIENCE, third).await.expect("in time").unwrap().unwrap_err();
    assert_eq!(shown(&error), "5 etcdserver: requested lease not found");
    api.election().resign(ResignRequest { leader: Some(first) }).await.unwrap();
    let empty = async {
        while api.election().leader(named()).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, empty).await.expect("in time");
}

#[tokio::test]
async fn a_candidate_without_a_lease_gets_one() {
    let api = with_leases(&[]).await;
    let leader = elected(campaign(&api, 0, "one")).await;
    assert_eq!(leader.key, format!("chief/{:x}", leader.lease).into_bytes());
    let proclaim = ProclaimRequest { leader: Some(leader), value: b"two".into() };
    api.election().proclaim(proclaim).await.unwrap();
}

/// As etcd's `concurrency` package asks who is ahead: a limit of 0 would be none.
#[tokio::test]
async fn the_first_key_of_all_has_a_revision_before_its_own() {
    let empty = Api::over(Memory::empty());
    let nothing = empty.kv().range(prefix("chief/")).await.unwrap().into_inner();
    assert_eq!(nothing.header.unwrap().revision, 1);
    let lease = empty.lease().lease_grant(LeaseGrantRequest { ttl: 60, id: 0x77 }).await.unwrap().into_inner();
    assert_eq!(lease.header.unwrap().revision, 1);

    let api = with_leases(&[0x77]).await;
    let put = api.kv().put(PutRequest { lease: 0x77, ..put("chief/77", "") }).await.unwrap().into_inner();
    let own = put.header.unwrap().revision;
    assert_eq!(own, 2);
    let ahead = RangeRequest { max_create_revision: own - 1, ..prefix("chief/") };
    assert_eq!(api.kv().range(ahead).await.unwrap().into_inner().kvs, []);
}

#[tokio::test(start_paused = true)]
async fn errors_are_etcds() {
    let api = with_leases(&[]).await;
    let mut client = api.election();
    let nobody = client.leader(named()).await.unwrap_err();
    assert_eq!(shown(&nobody), "5 election: no leader");
    let missing = "3 \"leader\" field must be provided";
    assert_eq!(shown(&client.proclaim(ProclaimRequest::default()).await.unwrap_err()), missing);
    assert_eq!(shown(&client.resign(ResignRequest::default()).await.unwrap_err()), missing);
    let nothing = LeaderKey { key: b"chief/77".into(), ..LeaderKey::default() };
    let proclaim = ProclaimRequest { leader: Some(nothing), value: Vec::new() };
    assert_eq!(shown(&client.proclaim(proclaim).await.unwrap_err()), "9 election: not leader");
    let unknown = CampaignRequest { name: b"chief".into(), lease: 5, value: Vec::new() };
    assert_eq!(shown(&client.campaign(unknown).await.unwrap_err()), "5 etcdserver: requested lease not found");
    let mut request = tonic::Request::new(named());
    request.metadata_mut().insert("hasleader", "true".parse().unwrap());
    let mut leaders = client.observe(request).await.unwrap().into_inner();
    let waits = futures::poll!(leaders.next());
    assert!(waits.is_pending());
    api.store.be_leaderless(true);
    let ended = timeout(PATIENCE, leaders.next()).await.expect("in time").expect("an error").unwrap_err();
    assert_eq!(shown(&ended), "14 etcdserver: no leader");
}
