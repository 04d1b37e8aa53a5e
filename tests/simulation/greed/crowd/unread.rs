//! A client that does not read its answers.

use futures::future::join_all;
use lockkeeper::proto::v1::{GetRequest, GetResponse, locks_client::LocksClient};
use tokio::time::{sleep, timeout};
use tonic::{
    Request, Streaming,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{
    super::{Guest, LIMIT, PAUSE, timed},
    acquire_of_crowd, crowd_lock,
};
use crate::network;

/// Bytes of the data of a lock, and how often it is asked for.
const DATA_BYTES: usize = 15_000;
const READS: usize = 60;
/// Acquires beside them.
const ACQUIRES: u64 = 8;
/// Bytes that the client takes without being read: the least that HTTP/2 has.
const WINDOW_BYTES: u32 = 65_535;
/// Time without reading.
const UNREAD: u32 = 10;

impl Guest {
    pub(super) async fn crowd_of_unread(&mut self, id: u64, seat: u64) {
        let Some((session, lease)) = self.crowd_session(id).await else { return };
        let guest = &*self;
        let name = crowd_lock(id, 0);
        let held = acquire_of_crowd(&session, 0, &name, DATA_BYTES, false);
        if timed(LocksClient::new(guest.channel(id)).acquire(held)).await.is_err() {
            return;
        }

        let channel = narrow_channel(seat);
        let unread = timeout(LIMIT, join_all((0..READS).map(|_| unread_get(channel.clone(), &name)))).await;
        // What may change something is refused before it is begun, or answered.
        let acquires = (1..=ACQUIRES).map(async |number| {
            let name = crowd_lock(id, number);
            let acquire = acquire_of_crowd(&session, number, &name, 0, false);
            if let Err(status) = timed(LocksClient::new(channel.clone()).acquire(acquire)).await {
                guest.hear_of_lock(name, lease, &status);
            }
        });
        join_all(acquires).await;
        sleep(PAUSE * UNREAD).await;

        let unread = unread.unwrap_or_default().into_iter().flatten();
        let read = unread.map(async |mut answer| timeout(LIMIT, answer.message()).await);
        join_all(read).await;
    }
}

/// A connection of its own, that takes little which is not read.
fn narrow_channel(seat: u64) -> Channel {
    let address = network::seat_address(seat);
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a simulated address makes a URL");
    let endpoint = endpoint.connect_timeout(LIMIT).initial_connection_window_size(WINDOW_BYTES);
    network::dial(endpoint.initial_stream_window_size(WINDOW_BYTES))
}

/// Asks for a lock, and leaves the answer unread.
async fn unread_get(channel: Channel, name: &str) -> Option<Streaming<GetResponse>> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.ok()?;
    let request = Request::new(GetRequest { name: name.to_owned(), ..GetRequest::default() });
    let path = PathAndQuery::from_static("/lockkeeper.v1.Locks/Get");
    let codec = ProstCodec::<GetRequest, GetResponse>::default();
    grpc.server_streaming(request, path, codec).await.ok().map(tonic::Response::into_inner)
}
