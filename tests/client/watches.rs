//! Watches whose connection breaks: the index at which they resume. Messages that the client does not understand.

use futures::TryStreamExt as _;
use lockkeeper::{
    client::{Changes, Error, StatePart, WatchMessage},
    proto::v1::{
        self,
        watch_response::{self, Progress, State, TooOld, What},
    },
};

use super::{
    client,
    fake::{Call, Node},
    soon,
};

fn state(index: u64, first: bool, last: bool) -> What {
    What::State(State { index, first, last, locks: Vec::new() })
}

fn changes(index: u64) -> What {
    What::Changes(watch_response::Changes { index, changes: Vec::new(), more: false })
}

/// The message as the client delivers it.
fn delivered(said: &What) -> WatchMessage {
    match *said {
        What::State(State { index, first, last, .. }) => {
            WatchMessage::State(StatePart { locks: Vec::new(), index, first, last })
        }
        What::Changes(watch_response::Changes { index, more, .. }) => {
            WatchMessage::Changes(Changes { index, changes: Vec::new(), more })
        }
        What::Progress(Progress { index }) => WatchMessage::Progress { index },
        What::TooOld(TooOld { after_index }) => WatchMessage::TooOld { after_index },
    }
}

fn asked_after(node: &Node) -> Vec<u64> {
    let after = |call| if let Call::Watch(request) = call { Some(request.after_index) } else { None };
    node.calls().into_iter().filter_map(after).collect()
}

#[tokio::test]
async fn a_broken_watch_resumes_after_the_last_complete_message() {
    let node = Node::start();
    let said = [
        // An incomplete state is sent again from the start.
        vec![state(5, true, false)],
        vec![state(6, true, false), state(6, false, true), changes(8)],
        vec![changes(9), What::Progress(Progress { index: 12 })],
        vec![What::TooOld(TooOld { after_index: 12 }), state(40, true, true)],
        vec![changes(41)],
    ];
    node.shows(said.clone());
    let mut watch = client(&[&node]).watch("jobs/");
    for said in said.into_iter().flatten() {
        let message = soon(watch.try_next()).await.unwrap().expect("it does not end");
        assert_eq!(message, delivered(&said));
    }
    assert_eq!(watch.index(), 41);
    tokio::select! {
        message = watch.next() => panic!("the node had sent all messages: {message:?}"),
        () = node.asked(|call| matches!(call, Call::Watch(request) if request.after_index == 41).then_some(())) => {}
    }
    assert_eq!(asked_after(&node), [0, 0, 8, 12, 40, 41]);
}

#[tokio::test]
async fn a_watch_can_start_after_an_index() {
    let node = Node::start();
    node.shows([vec![changes(8)]]);
    let mut watch = client(&[&node]).watch("jobs/").after(7);
    assert_eq!(soon(watch.next()).await.unwrap(), delivered(&changes(8)));
    assert_eq!(asked_after(&node), [7]);
}

/// It is reported once, and neither ends the watch nor is it requested again.
#[tokio::test]
async fn a_malformed_message_is_an_error_and_the_watch_goes_on_after_it() {
    let node = Node::start();
    let change = v1::Change { name: "jobs/a".to_owned(), session_id: "ann".to_owned(), ..v1::Change::default() };
    let malformed = watch_response::Changes { index: 9, changes: vec![change], more: false };
    node.shows([vec![changes(8), What::Changes(malformed)], vec![changes(10)]]);
    let mut watch = client(&[&node]).watch("jobs/").after(7);
    assert_eq!(soon(watch.next()).await.unwrap(), delivered(&changes(8)));
    let error = soon(watch.next()).await.unwrap_err();
    let Error::Malformed { field, value } = &error else { panic!("{error:?}") };
    assert_eq!((*field, &**value), ("change.session_id", "ann"));
    assert_eq!(watch.index(), 9);
    assert_eq!(soon(watch.next()).await.unwrap(), delivered(&changes(10)));
    assert_eq!(asked_after(&node), [7, 9]);
}
