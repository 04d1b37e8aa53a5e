//! Watching locks: their present state, then every change.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::{Stream, StreamExt as _, future::BoxFuture};
use tokio::time::{Instant, Sleep, sleep};
use tonic::{Status, Streaming};

use super::{Client, Error, backoff::Backoff, call::with};
use crate::proto::v1::{WatchRequest, WatchResponse, locks_client::LocksClient, watch_response::What};

/// The locks under a prefix: their present state, and then every change.
///
/// Take the messages from [`Watch::next`], or use it as a [`Stream`], which does not end. It survives the loss of a node and a change of
/// leader: it goes on after the last entry whose changes it has had. When it was away for too long for that, [`What::TooOld`] says so,
/// and the state comes again; what happened meanwhile is in it. A reader that is too slow is sent the state again too.
///
/// An error says that no node could be asked within the client's limit; the next poll tries again. Some come at once.
///
/// ```no_run
/// # async fn example(client: lockkeeper::client::Client) -> Result<(), lockkeeper::client::Error> {
/// use futures::TryStreamExt as _;
///
/// let mut watch = client.watch("reports/");
/// while let Some(message) = watch.try_next().await? {
///     println!("{message:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a watch sees nothing before it is asked"]
pub struct Watch {
    client: Client,
    request: WatchRequest,
    step: Step,
    backoff: Backoff,
}

enum Step {
    Idle,
    Opening(BoxFuture<'static, Result<Streaming<WatchResponse>, Error>>),
    Open {
        messages: Box<Streaming<WatchResponse>>,
        /// When it has been silent for too long.
        silent: Pin<Box<Sleep>>,
    },
    Pausing(Pin<Box<Sleep>>),
}

/// A server that has nothing to say says so every second.
const SILENCE_MAX: Duration = Duration::from_secs(10);

impl Watch {
    pub(super) fn new(client: Client, prefix: &str) -> Self {
        let request = WatchRequest { prefix: prefix.to_owned(), after_index: 0 };
        Self { client, request, step: Step::Idle, backoff: Backoff::default() }
    }

    /// Goes on after this log index, without the state: one that [`Watch::index`] said of an earlier watch of the same prefix. If that is
    /// too long ago, [`What::TooOld`] comes, and then the state.
    pub fn after(mut self, index: u64) -> Self {
        self.request.after_index = index;
        self
    }

    /// The last log index up to which all changes were told. 0: none yet, or the state is not whole.
    pub fn index(&self) -> u64 {
        self.request.after_index
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
    ///         Some(What::TooOld(_)) => println!("what was known is out of date; the state follows"),
    ///         Some(What::Progress(_)) | None => {}
    ///     }
    /// }
    /// # }
    /// ```
    pub async fn next(&mut self) -> Result<WatchResponse, Error> {
        match futures::StreamExt::next(self).await {
            Some(message) => message,
            None => unreachable!("it does not end"),
        }
    }

    fn open(&self) -> BoxFuture<'static, Result<Streaming<WatchResponse>, Error>> {
        let (client, request) = (self.client.clone(), self.request.clone());
        Box::pin(async move {
            client.caller.call(client.caller.plan_read(), |node| with!(LocksClient, node, watch, request)).await
        })
    }

    /// Where to go on. In the middle of a state there is no such place.
    fn note(&mut self, message: &WatchResponse) {
        match &message.what {
            Some(What::State(state)) => self.request.after_index = if state.last { state.index } else { 0 },
            // The rest of the entry is still to come: it comes again as a whole.
            Some(What::Changes(changes)) if changes.more => {}
            Some(What::Changes(changes)) => self.request.after_index = changes.index,
            Some(What::Progress(progress)) => self.request.after_index = progress.index,
            Some(What::TooOld(_)) => self.request.after_index = 0,
            None => {}
        }
    }

    fn pause(&mut self) {
        let pause = self.backoff.next(self.client.caller.jitter());
        self.step = Step::Pausing(Box::pin(sleep(pause)));
    }
}

impl Stream for Watch {
    type Item = Result<WatchResponse, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let watch = self.get_mut();
        loop {
            match &mut watch.step {
                Step::Idle => watch.step = Step::Opening(watch.open()),
                Step::Opening(opening) => match ready!(opening.as_mut().poll(context)) {
                    Ok(messages) => {
                        let silent = Box::pin(sleep(SILENCE_MAX));
                        watch.step = Step::Open { messages: Box::new(messages), silent };
                    }
                    Err(error) => {
                        watch.step = Step::Idle;
                        return Poll::Ready(Some(Err(error)));
                    }
                },
                Step::Open { messages, silent } => match messages.poll_next_unpin(context) {
                    Poll::Ready(Some(Ok(message))) => {
                        silent.as_mut().reset(Instant::now() + SILENCE_MAX);
                        watch.backoff = Backoff::default();
                        watch.note(&message);
                        return Poll::Ready(Some(Ok(message)));
                    }
                    Poll::Ready(broken) => {
                        let why = broken.map(|message| message.map_err(|status: Status| status.to_string()).err());
                        tracing::debug!(?why, "the watch broke off; watching anew");
                        watch.pause();
                    }
                    Poll::Pending => {
                        ready!(silent.as_mut().poll(context));
                        tracing::debug!("the watch is silent; watching anew");
                        watch.pause();
                    }
                },
                Step::Pausing(pause) => {
                    ready!(pause.as_mut().poll(context));
                    watch.step = Step::Idle;
                }
            }
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("request", &self.request).finish_non_exhaustive()
    }
}
