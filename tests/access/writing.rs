//! An identity at its limit: what its clients write to renew and to release goes on.

use lockkeeper_etcd::proto::etcdserverpb::{
    DeleteRangeRequest, LeaseGrantRequest, PutRequest, kv_client::KvClient, lease_client::LeaseClient,
};
use tonic::transport::Channel;

use super::stage::{Stage, from};
use crate::support::until;

const WHO: Option<&str> = Some("shop-1");
const POLICY: &str = r#"
[[rule]]
who = ["shop-1"]
may = ["acquire", "read", "watch"]

[limits.shop-1]
bytes = 2000
"#;

fn put(key: &str, lease: i64, value: u8) -> PutRequest {
    PutRequest { key: key.into(), value: vec![value; 2000], lease, ..PutRequest::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_at_its_limit_of_bytes_renews_and_releases_by_writing() {
    let stage = Stage::with(Some(POLICY), |options| options.etcd = true).await;
    let channel = Channel::from_shared(format!("http://{}", stage.cluster.etcd_endpoints()[0])).expect("a URL");
    let channel = channel.connect().await.expect("it listens");
    let (mut kv, mut leases) = (KvClient::new(channel.clone()), LeaseClient::new(channel));
    let grant = LeaseGrantRequest { ttl: 600, id: 0x77 };
    let lease = leases.lease_grant(from(WHO, grant)).await.expect("a lease").into_inner().id;
    // Not before all members know the keyspace.
    until("a key", async || kv.put(from(WHO, put("held", lease, 1))).await.ok()).await;

    let refused = kv.put(from(WHO, put("more", lease, 1))).await.expect_err("it asks for more");
    assert!(refused.message().contains("space exceeded"), "{refused}");
    kv.put(from(WHO, put("held", lease, 2))).await.expect("renewed");
    let given_back = PutRequest { lease: 0, ..put("held", lease, 3) };
    kv.put(from(WHO, given_back)).await.expect("released");
    let delete = DeleteRangeRequest { key: b"held".to_vec(), ..DeleteRangeRequest::default() };
    assert_eq!(kv.delete_range(from(WHO, delete)).await.expect("deleted").into_inner().deleted, 1);
    kv.put(from(WHO, put("more", lease, 1))).await.expect("it has room again");
}
