//! A store that has no room for more: what renews or gives back goes on.

use super::*;
use crate::proto::{
    etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest},
    v3electionpb::{CampaignRequest, ProclaimRequest, ResignRequest},
    v3lockpb::{LockRequest, UnlockRequest},
};

const LEASE: i64 = 0x77;

#[tokio::test]
async fn heartbeats_and_releases_go_on_and_what_asks_for_more_is_refused() {
    let api = Api::new();
    api.lease().lease_grant(LeaseGrantRequest { ttl: 60, id: LEASE }).await.unwrap();
    let lock = LockRequest { name: b"jobs".into(), lease: LEASE };
    let place = api.lock().lock(lock.clone()).await.unwrap().into_inner().key;
    let campaign = CampaignRequest { name: b"chief".into(), lease: LEASE, value: b"one".into() };
    let leader = api.election().campaign(campaign.clone()).await.unwrap().into_inner().leader;
    let held = PutRequest { lease: LEASE, ..put("held", "ann") };
    api.kv().put(held.clone()).await.unwrap();

    api.store.be_pressed();
    // What clients write as long as they hold.
    let heartbeat = |previous| {
        let is_own = compare("held", CompareResult::Equal, TargetUnion::Lease(LEASE));
        let put = PutRequest { prev_kv: previous, ..held.clone() };
        TxnRequest { compare: vec![is_own], success: vec![operation(put)], failure: vec![operation(prefix("held"))] }
    };
    api.kv().put(held.clone()).await.unwrap();
    assert!(api.kv().txn(heartbeat(false)).await.unwrap().into_inner().succeeded);
    let kept = PutRequest { ignore_lease: true, ..put("held", "bob") };
    api.kv().put(kept).await.unwrap();
    let proclaim = ProclaimRequest { leader: leader.clone(), value: b"two".into() };
    api.election().proclaim(proclaim).await.unwrap();

    let refused = |status: Status| assert!(shown(&status).contains("space"), "{status}");
    refused(api.kv().put(put("more", "1")).await.unwrap_err());
    refused(api.kv().put(PutRequest { lease: LEASE, ..put("more", "1") }).await.unwrap_err());
    refused(api.lock().lock(LockRequest { name: b"others".into(), ..lock }).await.unwrap_err());
    refused(api.election().campaign(CampaignRequest { name: b"others".into(), ..campaign }).await.unwrap_err());

    // What they write to give back.
    api.lock().unlock(UnlockRequest { key: place }).await.unwrap();
    api.election().resign(ResignRequest { leader }).await.unwrap();
    api.kv().put(put("held", "free")).await.unwrap();
    assert_eq!(api.kv().delete_range(delete("held")).await.unwrap().into_inner().deleted, 1);
    api.lease().lease_revoke(LeaseRevokeRequest { id: LEASE }).await.unwrap();
}
