//! Redis' port on a cluster with a policy: the narrowest policy that serves, and what ends with a token.

use std::fs;

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::stage::{Stage, narrowest_policy, token, tokens};
use crate::{
    encrypted::{encrypted, replace_authority, with_and_without_certificate},
    redis::{Connection, LONG, RELEASE, Reply, ok, text_of},
    support::until,
};

/// What the locks of the shop begin with.
const PREFIX: &str = "redis/0/seats/";

/// Releases a lock as Redisson does, and tells those that wait for it.
const RELEASE_AND_TELL: &str = "if redis.call('get', KEYS[1]) ~= ARGV[1] then return nil end; redis.call('del', KEYS[1]); return \
                                redis.call('publish', ARGV[2], 'open')";

/// A script that is no compare-and-delete: it runs at the leader, with the rights of its client.
const COPY: &str = "redis.call('set', KEYS[2], redis.call('get', KEYS[1]), 'px', 60000); return 1";

async fn stage() -> Stage {
    let stage = Stage::with(Some(&narrowest_policy(PREFIX)), |options| options.redis = true).await;
    for address in stage.cluster.redis_endpoints() {
        until("the port serves", async || {
            let set = connect(&address, "ops").await.call(&["SET", "ready", &address, "PX", "60000"]).await?;
            (set == ok()).then_some(())
        })
        .await;
    }
    stage
}

/// A connection that has proven an identity.
async fn connect(address: &str, identity: &str) -> Connection {
    let mut connection = Connection::open(address).await.expect("it listens");
    assert_eq!(authenticate(&mut connection, identity).await, ok());
    connection
}

async fn authenticate<S: AsyncRead + AsyncWrite + Unpin>(connection: &mut Connection<S>, identity: &str) -> Reply {
    connection.ask(&["AUTH", identity, token(identity).reveal()]).await
}

/// The policy refuses this.
async fn is_denied<S: AsyncRead + AsyncWrite + Unpin>(connection: &mut Connection<S>, arguments: &[&str]) {
    let reply = connection.ask(arguments).await;
    assert!(matches!(&reply, Reply::Error(text) if text.starts_with("NOPERM ")), "{arguments:?}: {reply:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_for_the_keys_is_enough_and_half_of_it_is_not() {
    let stage = stage().await;
    for (number, address) in stage.cluster.redis_endpoints().iter().enumerate() {
        let mut shop = connect(address, "shop-1").await;
        let key = format!("seats/{number}");
        let copy = format!("seats/copy-{number}");
        let queue = format!("seats/queue-{number}");
        let one = Reply::Number(1);
        for (arguments, reply) in [
            (&["SET", &key, "mine", "NX", "PX", "60000"][..], ok()),
            (&["SET", &key, "other", "NX", "PX", "60000"], Reply::Nil),
            (&["GET", &key], text_of("mine")),
            (&["PEXPIRE", &key, "50000"], one.clone()),
            (&["EVAL", COPY, "2", &key, &copy], one.clone()),
            (&["WATCH", &key], ok()),
            (&["MULTI"], ok()),
            (&["DEL", &copy], Reply::Status("QUEUED".to_owned())),
            (&["EXEC"], Reply::List(vec![one.clone()])),
            (&["RPUSH", &queue, "a"], one.clone()),
            (&["BLPOP", &queue, "1"], Reply::List(vec![text_of(&queue), text_of("a")])),
            (&["EVAL", RELEASE, "1", &key, "mine"], one.clone()),
        ] {
            assert_eq!(shop.ask(arguments).await, reply, "{arguments:?}");
        }
        assert_eq!(shop.ask(&["SET", &key, "again", "NX", "PX", "60000"]).await, ok());

        // What the rule does not name: other keys, also those that a script does not declare, other databases, and all keys at once.
        for arguments in [
            &["SET", "other", "v", "NX", "PX", "60000"][..],
            &["GET", "other"],
            &["EVAL", COPY, "2", &key, "other"],
            &["EVAL", "return redis.call('get', 'other')", "0"],
            &["EVAL", "redis.call('select', '1'); return redis.call('get', KEYS[1])", "1", &key],
            &["BLPOP", "other", "1"],
            &["KEYS", "*"],
            &["FLUSHALL"],
        ] {
            is_denied(&mut shop, arguments).await;
        }

        let mut reader = connect(address, "shop-2").await;
        assert_eq!(reader.ask(&["GET", &key]).await, text_of("again"));
        is_denied(&mut reader, &["SET", &key, "v", "NX", "PX", "60000"]).await;
        is_denied(&mut reader, &["EVAL", RELEASE, "1", &key, "again"]).await;
        is_denied(&mut reader, &["DEL", &key]).await;
        drop(reader);

        let mut writer = connect(address, "shop-limited").await;
        is_denied(&mut writer, &["GET", &key]).await;
        is_denied(&mut writer, &["SET", &key, "v", "NX", "PX", "60000"]).await;
        is_denied(&mut writer, &["EVAL", RELEASE, "1", &key, "again"]).await;

        let mut nobody = Connection::open(address).await.expect("it listens");
        is_denied(&mut nobody, &["GET", &key]).await;

        // Channels have no rights, also within a script.
        let opened = format!("opened-{number}");
        let mut waiting = connect(address, "shop-2").await;
        waiting.ask(&["SUBSCRIBE", &opened]).await;
        is_denied(&mut writer, &["EVAL", RELEASE_AND_TELL, "1", &key, "again", &opened]).await;
        assert_eq!(shop.ask(&["EVAL", RELEASE_AND_TELL, "1", &key, "again", &opened]).await, one);
        let told = timeout(LONG, waiting.read()).await.expect("the message of the one release");
        assert_eq!(told, Some(Reply::List(vec![text_of("message"), text_of(&opened), text_of("open")])));
    }
}

/// Also those that wait for an item, and those that only listen: they would go on to take what is others'.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_end_when_their_token_is_withdrawn() {
    let stage = stage().await;
    let mut concerned = Vec::new();
    let mut others = Vec::new();
    for address in stage.cluster.redis_endpoints() {
        concerned.push(connect(&address, "shop-1").await);
        let mut waits = connect(&address, "shop-1").await;
        waits.send(&["BLPOP", "seats/queue", "0"]).await.expect("it is open");
        concerned.push(waits);
        let mut listens = connect(&address, "shop-1").await;
        let acknowledged = listens.ask(&["SUBSCRIBE", "news"]).await;
        assert_eq!(acknowledged, Reply::List(vec![text_of("subscribe"), text_of("news"), Reply::Number(1)]));
        concerned.push(listens);
        others.push(connect(&address, "shop-2").await);
    }

    let hash = tokens().split('"').nth(3).expect("a hash").to_owned();
    fs::write(stage.tokens_file(), tokens().replacen(&hash, &"0".repeat(64), 1)).expect("written");
    for mut connection in concerned {
        let end = timeout(LONG, connection.read()).await.expect("it ends");
        assert_eq!(end, None);
    }
    for mut other in others {
        assert_eq!(other.ask(&["GET", "seats/1"]).await, Reply::Nil, "another token is not concerned");
    }
    let mut again = Connection::open(&stage.cluster.redis_endpoints()[0]).await.expect("it listens");
    let refused = authenticate(&mut again, "shop-1").await;
    assert!(matches!(&refused, Reply::Error(text) if text.starts_with("WRONGPASS ")), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_counted_for_their_identity() {
    let stage = stage().await;
    let address = stage.cluster.redis_endpoints().remove(0);
    let first = connect(&address, "shop-limited").await;
    let mut second = Connection::open(&address).await.expect("it listens");
    let refused = authenticate(&mut second, "shop-limited").await;
    let wanted = "ERR max number of clients reached: shop-limited has reached its limit of 1 for connections: ";
    assert!(matches!(&refused, Reply::Error(text) if text.starts_with(wanted)), "{refused:?}");
    drop(first);
    until("the end of the first one", async || (authenticate(&mut second, "shop-limited").await == ok()).then_some(()))
        .await;
    connect(&address, "shop-1").await;
}

/// The certificate is no further asked for, but what it proves ends with its authority: also a connection that waits, or only listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_end_when_the_authority_of_their_certificate_is_gone() {
    let stage = Stage::with(Some(&narrowest_policy(PREFIX)), |options| {
        options.tls = true;
        options.redis = true;
    })
    .await;
    let (own, none) = with_and_without_certificate(&stage.cluster);
    let mut concerned = Vec::new();
    let mut others = Vec::new();
    for address in stage.cluster.redis_endpoints() {
        let certified = async || encrypted(&address, &own).await.map(Connection::over);
        until("the port serves", async || {
            let set = certified().await?.call(&["SET", "ready", &address, "PX", "60000"]).await?;
            (set == ok()).then_some(())
        })
        .await;
        concerned.push(certified().await.expect("it listens"));
        let mut waits = certified().await.expect("it listens");
        waits.send(&["BLPOP", "queue", "0"]).await.expect("it is open");
        concerned.push(waits);

        let mut other = Connection::over(encrypted(&address, &none).await.expect("it listens"));
        assert_eq!(authenticate(&mut other, "shop-1").await, ok());
        others.push(other);
    }

    replace_authority(&stage.cluster);
    for mut connection in concerned {
        let end = timeout(LONG, connection.read()).await.expect("it ends");
        assert_eq!(end, None);
    }
    for mut other in others {
        assert_eq!(other.ask(&["PING"]).await, Reply::Status("PONG".to_owned()), "a token is not concerned");
    }
}

/// With TLS: a certificate is an identity, and a token is one for a client without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_tls_a_certificate_or_a_token_proves_who_it_is() {
    let stage = Stage::with(Some(&narrowest_policy(PREFIX)), |options| {
        options.tls = true;
        options.redis = true;
    })
    .await;
    let (own, none) = with_and_without_certificate(&stage.cluster);

    for address in stage.cluster.redis_endpoints() {
        let certified = async || encrypted(&address, &own).await.map(Connection::over);
        until("the port serves", async || {
            let set = certified().await?.call(&["SET", "ready", &address, "PX", "60000"]).await?;
            (set == ok()).then_some(())
        })
        .await;
        let mut certified = certified().await.expect("it listens");
        let listed = certified.ask(&["CLIENT", "INFO"]).await;
        assert!(matches!(&listed, Reply::Text(line) if line.contains(" user=local ")), "{listed:?}");

        let mut stranger = Connection::over(encrypted(&address, &none).await.expect("it listens"));
        is_denied(&mut stranger, &["GET", "ready"]).await;
        assert_eq!(authenticate(&mut stranger, "shop-1").await, ok());
        is_denied(&mut stranger, &["GET", "ready"]).await;
        assert_eq!(stranger.ask(&["SET", "seats/1", "v", "NX", "PX", "60000"]).await, ok());
        assert_eq!(stranger.ask(&["EVAL", RELEASE, "1", "seats/1", "v"]).await, Reply::Number(1));

        // Plain text is no handshake: the connection ends, and nothing of Redis' is answered.
        let mut plain = TcpStream::connect(&address).await.expect("it listens");
        plain.write_all(b"*1\r\n$4\r\nPING\r\n").await.expect("it is open");
        let mut answer = Vec::new();
        let _ = timeout(LONG, plain.read_to_end(&mut answer)).await.expect("it ends");
        assert!(!answer.starts_with(b"+PONG"), "{answer:?}");
    }
}
