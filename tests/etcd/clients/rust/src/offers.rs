//! What the client offers beside contention: keys, transactions, watches, leases, and the calls of locks and elections.

use anyhow::{Context as _, Result, ensure};
use etcd_client::{
    Client, Compare, CompareOp, EventType, GetOptions, LeaseGrantOptions, LeaseTimeToLiveOptions, LockOptions,
    ProclaimOptions, PutOptions, ResignOptions, Txn, TxnOp, WatchOptions,
};

pub(crate) async fn run(endpoint: &str, name: &str) -> Result<()> {
    let mut client = Client::connect([endpoint], None).await?;
    keys(&mut client, &format!("{name}/keys")).await?;
    watches_and_leases(&mut client, &format!("{name}/watched")).await?;
    locks(&mut client, &format!("{name}/lock")).await?;
    elections(&mut client, &format!("{name}/boss")).await
}

async fn keys(client: &mut Client, name: &str) -> Result<()> {
    let key = |last: &str| format!("{name}/{last}");
    client.put(key("a"), "1", None).await?;
    let before = client.put(key("a"), "2", Some(PutOptions::new().with_prev_key())).await?;
    ensure!(before.prev_key().context("a key before")?.value() == b"1");
    let absent = |last: &str| Compare::version(key(last), CompareOp::Equal, 0);
    let put = |last: &str| TxnOp::put(key(last), "1", None);
    let txn = |last: &str| Txn::new().when([absent(last)]).and_then([put(last)]).or_else([TxnOp::get(key(last), None)]);
    ensure!(client.txn(txn("b")).await?.succeeded());
    let other = client.txn(txn("b")).await?;
    ensure!(!other.succeeded() && other.op_responses().len() == 1);
    let all = client.get(key(""), Some(GetOptions::new().with_prefix())).await?;
    ensure!(all.kvs().iter().map(|kv| kv.value()).collect::<Vec<_>>() == [b"2", b"1"]);
    ensure!(client.delete(key("a"), None).await?.deleted() == 1);
    ensure!(client.get(key(""), Some(GetOptions::new().with_prefix().with_count_only())).await?.count() == 1);
    Ok(())
}

async fn watches_and_leases(client: &mut Client, name: &str) -> Result<()> {
    let mut watch = client.watch(name, Some(WatchOptions::new().with_prefix().with_prev_key())).await?;
    let lease = client.lease_grant(60, None).await?.id();
    let again = client.lease_grant(60, Some(LeaseGrantOptions::new().with_id(lease))).await;
    ensure!(again.is_err_and(|error| error.to_string().contains("lease already exists")));
    client.put(name, "1", Some(PutOptions::new().with_lease(lease))).await?;
    let (mut keeper, mut answers) = client.lease_keep_alive(lease).await?;
    keeper.keep_alive().await?;
    ensure!(answers.message().await?.context("an answer")?.ttl() == 60);
    let shown = client.lease_time_to_live(lease, Some(LeaseTimeToLiveOptions::new().with_keys())).await?;
    ensure!(shown.granted_ttl() == 60 && shown.keys() == [name.as_bytes()]);
    ensure!(client.leases().await?.leases().iter().any(|listed| listed.id() == lease));
    client.lease_revoke(lease).await?;
    ensure!(answers.message().await?.context("its end is told")?.ttl() == 0);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let answer = watch.message().await?.context("an event")?;
        seen.extend(answer.events().iter().map(|event| (event.event_type(), event.prev_kv().is_some())));
    }
    ensure!(seen == [(EventType::Put, false), (EventType::Delete, true)], "{seen:?}");
    watch.cancel(0).await?;
    while let Some(answer) = watch.message().await? {
        if answer.canceled() {
            return Ok(());
        }
    }
    Ok(())
}

async fn locks(client: &mut Client, name: &str) -> Result<()> {
    let lease = client.lease_grant(60, None).await?.id();
    let options = LockOptions::new().with_lease(lease);
    let key = client.lock(name, Some(options.clone())).await?.key().to_vec();
    ensure!(key == format!("{name}/{lease:x}").as_bytes());
    ensure!(client.lock(name, Some(options)).await?.key() == key, "a lease locks once");
    client.unlock(key.clone()).await?;
    ensure!(client.unlock(key).await.is_err(), "it is not locked any more");
    let key = client.lock(name, None).await.context("a lock with a lease that the server makes")?.key().to_vec();
    client.unlock(key).await?;
    Ok(())
}

async fn elections(client: &mut Client, name: &str) -> Result<()> {
    ensure!(client.leader(name).await.is_err_and(|error| error.to_string().contains("election: no leader")));
    let mut leaders = client.observe(name).await?;
    let leases = [client.lease_grant(60, None).await?.id(), client.lease_grant(60, None).await?.id()];
    let first = client.campaign(name, "one", leases[0]).await?.take_leader().context("a leader")?;
    let (mut other, of_other) = (client.clone(), name.to_owned());
    let second = tokio::spawn(async move { other.campaign(of_other, "two", leases[1]).await });
    let mut next = async |wanted: &str| {
        let leader = leaders.message().await?.context("a leader")?;
        let value = leader.kv().context("its key")?.value_str()?.to_owned();
        ensure!(value == wanted, "{value} leads, not {wanted}");
        Ok(())
    };
    next("one").await?;
    client.proclaim("one again", Some(ProclaimOptions::new().with_leader(first.clone()))).await?;
    next("one again").await?;
    client.resign(Some(ResignOptions::new().with_leader(first.clone()))).await?;
    second.await??;
    next("two").await?;
    ensure!(client.leader(name).await?.kv().context("its key")?.value() == b"two");
    let late = client.proclaim("late", Some(ProclaimOptions::new().with_leader(first))).await;
    ensure!(late.is_err_and(|error| error.to_string().contains("election: not leader")));
    Ok(())
}
