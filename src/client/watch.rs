//! Watching locks: their present state, then every change.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tonic::Streaming;

use super::{Client, Error, backoff::Backoff, call::with};
use crate::proto::v1::{WatchRequest, WatchResponse, locks_client::LocksClient};

/// The locks under a prefix. Survives the loss of a node: then the state comes again, and what happened meanwhile is in it.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    request: WatchRequest,
    stream: Option<Streaming<WatchResponse>>,
    backoff: Backoff,
}

impl Watch {
    pub(super) fn new(client: Client, prefix: &str) -> Self {
        Self { client, request: WatchRequest { prefix: prefix.to_owned() }, stream: None, backoff: Backoff::default() }
    }

    /// The next message, waited for as long as it takes: state, changes, or that there were none up to an index. Fails when no node
    /// could be asked within the client's limit; the next call tries again. Cancel safe.
    ///
    /// ```no_run
    /// # async fn example(client: lockkeeper::client::Client) -> Result<(), lockkeeper::client::Error> {
    /// use lockkeeper::proto::v1::watch_response::What;
    ///
    /// let mut watch = client.watch("reports/");
    /// loop {
    ///     match watch.next().await?.what {
    ///         Some(What::State(state)) => println!("{} locks", state.locks.len()),
    ///         Some(What::Changes(changes)) => println!("{:?}", changes.changes),
    ///         Some(What::Progress(_)) | None => {}
    ///     }
    /// }
    /// # }
    /// ```
    pub async fn next(&mut self) -> Result<WatchResponse, Error> {
        loop {
            let stream = match &mut self.stream {
                Some(stream) => stream,
                None => self.stream.insert(open(&self.client, &self.request).await?),
            };
            match timeout(SILENCE_MAX, stream.message()).await {
                Ok(Ok(Some(message))) => {
                    self.backoff = Backoff::default();
                    return Ok(message);
                }
                Ok(Ok(None)) => tracing::debug!("the watch was ended; watching anew"),
                Ok(Err(status)) => tracing::debug!(%status, "the watch broke off; watching anew"),
                Err(_) => tracing::debug!("the watch is silent; watching anew"),
            }
            self.stream = None;
            sleep(self.backoff.next(self.client.caller.jitter())).await;
        }
    }
}

/// A server that has nothing to say says so every second.
const SILENCE_MAX: Duration = Duration::from_secs(10);

async fn open(client: &Client, request: &WatchRequest) -> Result<Streaming<WatchResponse>, Error> {
    client.caller.call(client.caller.plan_read(), |node| with!(LocksClient, node, watch, request)).await
}
