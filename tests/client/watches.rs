//! Watches whose connection breaks: the index at which they resume.

use futures::TryStreamExt as _;
use lockkeeper::proto::v1::watch_response::{Changes, Progress, State, TooOld, What};

use super::{
    client,
    fake::{Call, Node},
    soon,
};

fn state(index: u64, first: bool, last: bool) -> What {
    What::State(State { index, first, last, locks: Vec::new() })
}

fn changes(index: u64) -> What {
    What::Changes(Changes { index, changes: Vec::new(), more: false })
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
    for expected in said.into_iter().flatten() {
        let message = soon(watch.try_next()).await.unwrap().expect("it does not end");
        assert_eq!(message.what, Some(expected));
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
    assert_eq!(soon(watch.next()).await.unwrap().what, Some(changes(8)));
    assert_eq!(asked_after(&node), [7]);
}
