//! Watches of locks by the thousand, none of which anything concerns.

use futures::{StreamExt as _, stream};
use lockkeeper::proto::v1::{WatchRequest, locks_client::LocksClient, watch_response::What};
use tokio::time::timeout;
use tonic::transport::Channel;

use super::{
    sized,
    stage::{Descriptors, Stage},
};
use crate::support::LONG;

#[tokio::test(flavor = "multi_thread")]
async fn watches_of_locks_that_do_not_change_harm_no_other_client() {
    let mut stage = Stage::open(Descriptors::AsTheyAre).await;
    let abuse = async |stage: &Stage| {
        let endpoint = Channel::from_shared(format!("http://{}", stage.leader().await)).expect("a URL");
        let channel = endpoint.connect().await.expect("it listens");
        let open = async |number: usize| {
            let request = WatchRequest { prefix: format!("watched/{number}/"), ..WatchRequest::default() };
            let mut watch = LocksClient::new(channel.clone()).watch(request).await.expect("a stream").into_inner();
            let first = timeout(LONG, watch.message()).await.expect("in time").expect("a state").expect("a state");
            assert!(matches!(first.what, Some(What::State(state)) if state.last));
            watch
        };
        let count = sized(500, 10_000);
        let watches: Vec<_> = stream::iter(0..count).map(open).buffer_unordered(64).collect().await;
        // The bystander's pairs change locks meanwhile, and none of these.
        for mut watch in watches {
            let next = timeout(LONG, watch.message()).await.expect("in time").expect("it goes on").expect("it goes on");
            assert!(matches!(next.what, Some(What::Progress(_))), "{next:?}");
        }
    };
    stage.survives("watches of locks", abuse).await;
}
