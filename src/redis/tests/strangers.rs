//! Clients that would harm others: by what they publish, subscribe to, wait for, or end.

use super::signals::{SeveralNodes, message};

/// Clients of Sentinel would follow them to another server.
#[tokio::test(start_paused = true)]
async fn no_client_publishes_as_a_sentinel_does() {
    let nodes = SeveralNodes::new(2);
    let mut listens = nodes.client(0);
    listens.call("subscribe +switch-master news").await;
    listens.call("psubscribe *s*").await;
    let mut stranger = nodes.client(1);
    for channel in ["+switch-master", "+sentinel", "-sdown", "__sentinel__:hello"] {
        let refused =
            stranger.request(["publish", channel, "mymaster"].map(|word| word.as_bytes().to_vec()).to_vec()).await;
        assert!(
            refused.starts_with(&format!("-NOPERM clients do not publish on the channel '{channel}'")),
            "{refused}"
        );
    }

    // Nor by a script or a transaction, whose other commands take effect.
    let script = |source: &str| vec![b"EVAL".to_vec(), source.as_bytes().to_vec(), b"0".to_vec()];
    let refused = stranger.request(script("publish +switch-master mymaster")).await;
    assert!(refused.starts_with("-NOPERM "), "{refused}");
    for line in ["multi", "publish +switch-master mymaster", "publish news hello"] {
        stranger.call(line).await;
    }
    let replies = stranger.call("exec").await;
    assert!(replies.starts_with("*2|-NOPERM ") && replies.ends_with("|:2|"), "{replies}");
    assert_eq!(message(&mut listens).await, "*3|$7|message|$4|news|$5|hello|");
}

/// A node of an earlier version does not refuse it.
#[tokio::test(start_paused = true)]
async fn what_the_log_has_of_a_channel_of_sentinel_is_not_delivered() {
    let nodes = SeveralNodes::new(1);
    let mut listens = nodes.client(0);
    listens.call("subscribe +switch-master +slave news").await;
    nodes.store.put("redis/message/+switch-master", b"mymaster 1.1.1.1 1 2.2.2.2 2");
    nodes.store.put("redis/message/+slave", b"slave 2.2.2.2:2 2.2.2.2 2 @ mymaster 1.1.1.1 1");
    nodes.store.put("redis/message/news", b"hello");
    assert_eq!(message(&mut listens).await, "*3|$7|message|$4|news|$5|hello|");
}
