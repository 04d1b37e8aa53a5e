//! Bearer tokens: forged, malformed, revoked, and where they never show.

use std::fs;

use lockkeeper::proto::v1::{KeepAliveRequest, PipelineRequest, WatchRequest};
use lockkeeper_policy::TOKEN_PREFIX;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::stage::{Stage, end, from, open, reason, token, tokens, waits_at_all_nodes, with_token};
use crate::support::{LONG, until};

#[tokio::test(flavor = "multi_thread")]
async fn forged_tokens_are_refused_and_shown_nowhere() {
    let stage = Stage::new(None).await;
    let good = token("shop-1").reveal().to_owned();
    // What the file holds is no token.
    let hash = tokens().split('"').nth(3).expect("a hash").to_owned();
    let forged = [
        format!("{TOKEN_PREFIX}{}", "0".repeat(64)),
        good[..good.len() - 1].to_owned(),
        format!("{good}0"),
        good.to_uppercase(),
        format!("{TOKEN_PREFIX}{hash}"),
        hash,
        "shop-1".to_owned(),
        String::new(),
    ];
    for node_id in 1..=3 {
        for token in &forged {
            let status =
                stage.sessions(node_id).await.open(with_token(Some(token), open(""))).await.expect_err("forged");
            assert_eq!(
                (status.code(), reason(&status).as_str()),
                (Code::Unauthenticated, "UNAUTHENTICATED"),
                "{token}"
            );
            assert!(token.is_empty() || !format!("{status:?}").contains(token.as_str()), "{status:?}");
        }
    }
    let mut twice = with_token(Some(&good), open(""));
    twice.metadata_mut().append("authorization", format!("Bearer {good}").parse().expect("a header"));
    let status = stage.sessions(1).await.open(twice).await.expect_err("which one counts?");
    assert_eq!(status.code(), Code::Unauthenticated);
    // A client cannot name itself by the metadata of forwarded requests.
    let mut named = with_token(None, open("000000000000000000000000000000aa"));
    named.metadata_mut().insert("lockkeeper-client-identity", "shop-1".parse().expect("a header"));
    stage.sessions(1).await.open(named).await.expect("as an anonymous caller");
    let shown = stage.client(None).sessions("").await.expect("answered").sessions;
    assert_eq!(shown.iter().map(|session| session.owner.as_deref()).collect::<Vec<_>>(), [None]);

    for node in stage.cluster.nodes() {
        let log = fs::read_to_string(node.log_file()).expect("readable");
        assert!(
            forged.iter().chain([&good]).filter(|token| token.len() > 20).all(|token| !log.contains(token.as_str()))
        );
    }
}

/// A token that is taken out of the file is refused within seconds, and no earlier answer lets it back in.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_is_refused_and_cannot_be_replayed() {
    let stage = Stage::new(None).await;
    let good = token("shop-1").reveal().to_owned();
    let mut sessions = stage.sessions(1).await;
    sessions.open(with_token(Some(&good), open(""))).await.expect("known");
    let without: String = tokens().split_inclusive("\n\n").collect::<String>().replacen("shop-1", "someone-else", 1);
    let hash = tokens().split('"').nth(3).expect("a hash").to_owned();
    fs::write(stage.tokens_file(), without.replacen(&hash, &"0".repeat(64), 1)).expect("written");
    let status = until("the refusal", async || sessions.open(with_token(Some(&good), open(""))).await.err()).await;
    assert_eq!(reason(&status), "UNAUTHENTICATED");
    let other = token("shop-2").reveal().to_owned();
    sessions.open(with_token(Some(&other), open(""))).await.expect("the others are known as before");
    assert!(sessions.open(with_token(Some(&good), open(""))).await.is_err());
}

/// Watches, keep-alives and pipelines end with the token that opened them, at each node; those of others go on.
#[tokio::test(flavor = "multi_thread")]
async fn streams_end_when_their_token_is_withdrawn() {
    let stage = Stage::new(None).await;
    let (mut watches, mut keep_alives, mut pipelines, mut kept_open) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let watch = async |node: u64, who: &str| {
        let mut request = from(Some(who), WatchRequest { prefix: "seats/".to_owned(), after_index: 0 });
        request.set_timeout(2 * LONG);
        stage.locks(node).await.watch(request).await.expect("allowed").into_inner()
    };
    for node in 1..=3 {
        watches.push(watch(node, "shop-1").await);
        let (sender, renewals) = mpsc::channel::<KeepAliveRequest>(1);
        let mut request = from(Some("shop-1"), ReceiverStream::new(renewals));
        request.set_timeout(2 * LONG);
        keep_alives.push(stage.sessions(node).await.keep_alive(request).await.expect("allowed").into_inner());
        let (requester, requests) = mpsc::channel::<PipelineRequest>(1);
        let mut request = from(Some("shop-1"), ReceiverStream::new(requests));
        request.set_timeout(2 * LONG);
        pipelines.push(stage.locks(node).await.pipeline(request).await.expect("allowed").into_inner());
        kept_open.push((sender, requester));
    }
    let mut of_another = watch(2, "shop-2").await;
    let hash = tokens().split('"').nth(3).expect("a hash").to_owned();
    fs::write(stage.tokens_file(), tokens().replacen(&hash, &"0".repeat(64), 1)).expect("written");
    for watch in watches {
        assert_eq!(reason(&end(watch).await), "UNAUTHENTICATED");
    }
    for keep_alive in keep_alives {
        assert_eq!(reason(&end(keep_alive).await), "UNAUTHENTICATED");
    }
    for pipeline in pipelines {
        assert_eq!(reason(&end(pipeline).await), "UNAUTHENTICATED");
    }
    for _ in 0..3 {
        of_another.message().await.expect("another token is not concerned").expect("it goes on");
    }
}

/// At each node, and those of another identity go on.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_waits_ends_when_its_token_is_withdrawn() {
    let stage = Stage::new(None).await;
    let session = stage.session(Some("ops")).await;
    let held = session.acquire("seats/1").await.expect("free");
    let waits = waits_at_all_nodes(&stage, "shop-1", "seats/1").await;
    let other = stage.session(Some("shop-2")).await;
    let of_another = tokio::spawn(async move { other.acquire("seats/1").await.map(drop) });
    let operator = stage.client(Some("ops"));
    let queue_length = async || operator.get("seats/1").await.map(|found| found.lock.queue_length);
    until("all of them wait", async || queue_length().await.ok().filter(|length| *length == 4)).await;

    let hash = tokens().split('"').nth(3).expect("a hash").to_owned();
    fs::write(stage.tokens_file(), tokens().replacen(&hash, &"0".repeat(64), 1)).expect("written");
    for wait in waits {
        let status = timeout(LONG, wait).await.expect("it ends").expect("no panic");
        assert_eq!(reason(&status), "UNAUTHENTICATED", "{status:?}");
    }
    assert_eq!(
        queue_length().await.ok(),
        Some(1),
        "what is refused has left the queue: its client will not release it"
    );

    held.release().await.expect("it is held");
    let granted = timeout(LONG, of_another).await.expect("it is the next").expect("no panic");
    granted.expect("another token is not concerned");
}

/// As a copy leaves the file when it is interrupted, or for a moment: emptied, before it is written.
#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_file_withdraws_no_token_and_one_without_tokens_all() {
    let stage = Stage::new(None).await;
    let mut watches = Vec::new();
    for node in 1..=3 {
        let mut request = from(Some("shop-1"), WatchRequest { prefix: "seats/".to_owned(), after_index: 0 });
        request.set_timeout(4 * LONG);
        watches.push(stage.locks(node).await.watch(request).await.expect("allowed").into_inner());
    }

    fs::write(stage.tokens_file(), "").expect("written");
    until("all nodes have read it", async || {
        let refused = "is refused; what was read before stays in force";
        let has_read = |file| fs::read_to_string(file).is_ok_and(|log: String| log.contains(refused));
        stage.cluster.nodes().all(|node| has_read(node.log_file())).then_some(())
    })
    .await;
    let good = token("shop-1").reveal().to_owned();
    for node in 1..=3 {
        stage.sessions(node).await.open(with_token(Some(&good), open(""))).await.expect("it is known as before");
    }
    for watch in &mut watches {
        for _ in 0..3 {
            watch.message().await.expect("nothing was withdrawn").expect("it goes on");
        }
    }

    fs::write(stage.tokens_file(), "token = []\n").expect("written");
    for watch in watches {
        assert_eq!(reason(&end(watch).await), "UNAUTHENTICATED");
    }
}
