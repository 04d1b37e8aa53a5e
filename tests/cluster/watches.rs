//! Watches: the state, then each change; and the state again for a watcher that lags.

use std::collections::BTreeMap;

use futures::future::join_all;
use lockkeeper::{
    client::{ChangeKind, NewData, WatchMessage},
    proto::v1::{self, WatchRequest, locks_client::LocksClient},
};

use crate::support::{LONG, client, cluster, leader, long_session, steady_cluster};

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_sees_the_state_and_then_each_change() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let before = session.acquire("watched/before").await.expect("free");
    let mut watch = client.watch("watched/");
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let message = tokio::time::timeout(LONG, watch.next()).await.expect("in time").expect("the stream goes on");
        match message {
            WatchMessage::State(state) => {
                seen.extend(state.locks.iter().map(|lock| format!("state {}", lock.name)));
                if state.last {
                    after = Some(session.acquire("watched/after").await.expect("free"));
                    drop(session.acquire("elsewhere").await.expect("free"));
                }
            }
            WatchMessage::Changes(changes) => {
                seen.extend(changes.changes.iter().map(|change| format!("{:?} {}", change.kind, change.name)));
                if let Some(held) = after.take() {
                    held.release().await.expect("it was held");
                }
            }
            WatchMessage::Progress { .. } | WatchMessage::TooOld { .. } | _ => {}
        }
        if seen.len() >= 3 {
            break;
        }
    }
    assert_eq!(seen, ["state watched/before", "Granted watched/after", "Released watched/after"]);
    drop(before);
}

/// Changes suffice to follow the queue: each queued acquire leaves it or is granted.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_can_follow_the_queue() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let other = long_session(&client).await;
    let held = session.acquire("seat").await.expect("free");
    let mut watch = client.watch("seat");
    let mut queue = Vec::new();
    let mut granted = None;
    let mut waiting = None;
    while granted.is_none() {
        let message = tokio::time::timeout(LONG, watch.next()).await.expect("in time").expect("the stream goes on");
        match message {
            WatchMessage::State(state) if state.last => {
                waiting = Some(tokio::spawn(other.acquire("seat").into_future()));
            }
            WatchMessage::Changes(changes) => {
                for change in changes.changes {
                    if change.kind == ChangeKind::Queued {
                        queue.push(change.ticket);
                        held.release().await.expect("it was held");
                    } else if change.kind == ChangeKind::Granted {
                        queue.retain(|ticket| *ticket != change.ticket);
                        granted = Some(change.ticket);
                    }
                }
            }
            WatchMessage::State(_) | WatchMessage::Progress { .. } | WatchMessage::TooOld { .. } | _ => {}
        }
    }
    assert!(queue.is_empty(), "{queue:?} are left, and {granted:?} was granted");
    waiting.expect("it was sent").await.expect("no panic").expect("granted").release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_lags_is_sent_the_state_again() {
    // The unread changes exceed the server's buffer for a watcher, in number and in bytes. The watcher still reads some, since the server
    // ends a watch that is not read for too long. For the same reason the locks are updated side by side: one update after the other takes
    // that long on a busy machine.
    const LOCKS: usize = 8;
    const ROUNDS_MAX: usize = 400;
    const READ_AT: usize = 16;
    const READ: usize = 64;
    // What reads too slowly even so, on a machine that stalls, begins again.
    const WATCHES_MAX: usize = 10;
    let cluster = steady_cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let names: Vec<String> = (0..LOCKS).map(|number| format!("large/{number}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(session.acquire(name).await.expect("free"));
    }

    let channel = cluster.node(leader(&cluster).await).channel().await.expect("it serves");
    let request = WatchRequest { prefix: "large/".to_string(), after_index: 0 };
    let mut locks = LocksClient::new(channel);
    let mut watch = locks.watch(request.clone()).await.expect("it watches").into_inner();
    let mut watches = 1;

    let data = |round: usize| [round.to_be_bytes().as_slice(), &[0; 16 * 1024 - size_of::<usize>()]].concat();
    let mut last = BTreeMap::new();
    let mut states = 0;
    let mut index = 0;
    let mut is_continued = false;
    let mut rounds = 0;
    let mut rounds_max = ROUNDS_MAX;
    let mut read = 0;
    while states < 2 || names.iter().any(|name| last.get(name) != Some(&data(rounds))) {
        while states < 2 && read >= rounds / READ_AT * READ {
            assert!(rounds < rounds_max, "the watcher never lagged");
            rounds += 1;
            let value = data(rounds);
            let updates = held.iter().zip(&names).map(|(held, name)| held.update(name, NewData::Held(&value)));
            for updated in join_all(updates).await {
                updated.expect("it is held");
            }
        }

        let message = tokio::time::timeout(LONG, watch.message()).await.expect("in time");
        if message.as_ref().is_err_and(|ended| ended.code() == tonic::Code::ResourceExhausted) {
            watches += 1;
            assert!(watches <= WATCHES_MAX, "{message:?}");
            watch = locks.watch(request.clone()).await.expect("it watches").into_inner();
            (states, index, is_continued) = (0, 0, false);
            read = rounds / READ_AT * READ;
            rounds_max = rounds + ROUNDS_MAX;
            continue;
        }
        match message.expect("it goes on").expect("it does not end").what.expect("something") {
            v1::watch_response::What::State(state) => {
                assert!(state.index >= index, "the state is older than an earlier message");
                index = state.index;
                states += usize::from(state.last);
                read += state.locks.len();
                last.extend(state.locks.into_iter().filter_map(|lock| Some((lock.name, lock.data?))));
            }
            v1::watch_response::What::Changes(changes) => {
                assert!(changes.index > index || is_continued && changes.index == index, "a change was sent twice");
                index = changes.index;
                is_continued = changes.more;
                read += changes.changes.len();
                last.extend(changes.changes.into_iter().filter_map(|change| Some((change.name, change.data?))));
            }
            v1::watch_response::What::Progress(progress) => index = progress.index,
            v1::watch_response::What::TooOld(_) => panic!("it did not ask to go on"),
        }
    }
    for held in held {
        held.release().await.expect("it was held");
    }
}

/// The next leader resumes the watch: no change twice, none missing, and no second state.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_resumes_across_a_change_of_leader() {
    const ROUNDS: usize = 12;
    let mut cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let mut watch = client.watch("seat");
    let mut states = 0;
    let mut seen = Vec::new();
    let mut told_up_to = 0;
    let mut begun = false;
    let deadline = tokio::time::Instant::now() + LONG;
    while seen.len() < 2 * ROUNDS {
        assert!(tokio::time::Instant::now() < deadline, "some changes were never sent: {seen:?}");
        let message = tokio::time::timeout(LONG, watch.next()).await.expect("in time").expect("the stream goes on");
        match message {
            WatchMessage::State(state) => states += usize::from(state.last),
            WatchMessage::Changes(changes) => {
                assert!(changes.index > told_up_to, "a change was sent twice");
                told_up_to = changes.index;
                seen.extend(changes.changes.into_iter().map(|change| (change.kind, change.token)));
            }
            WatchMessage::TooOld { after_index } => panic!("these few entries are known: {after_index}"),
            WatchMessage::Progress { .. } | _ => {}
        }
        if states == 1 && !begun {
            begun = true;
            // The watcher does not read meanwhile: half of the changes are before the change of leader, half after it.
            for round in 0..ROUNDS {
                if round == ROUNDS / 2 {
                    let leader = leader(&cluster).await;
                    cluster.node_mut(leader).kill().await;
                }
                session.acquire("seat").await.expect("free").release().await.expect("it was held");
            }
        }
    }
    assert_eq!(states, 1, "the state is not sent again");
    let tokens: Vec<_> = seen.chunks(2).map(|pair| pair[0].1).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{seen:?}");
    for pair in seen.chunks(2) {
        assert_eq!((pair[0].0, pair[1].0), (ChangeKind::Granted, ChangeKind::Released), "{seen:?}");
        assert_eq!(pair[0].1, pair[1].1, "{seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_from_an_unknown_index_gets_too_old_and_then_the_state() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let held = long_session(&client).await.acquire("seat").await.expect("free");
    let mut watch = client.watch("seat").after(1 << 40);
    let mut next = async || tokio::time::timeout(LONG, watch.next()).await.expect("in time").expect("it goes on");
    assert_eq!(next().await, WatchMessage::TooOld { after_index: 1 << 40 });
    let WatchMessage::State(state) = next().await else { panic!("the state follows") };
    assert!(state.first && state.locks[0].name.as_str() == "seat", "{state:?}");
    held.release().await.expect("it was held");
}
