//! Watches locks: their present state, then every change.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::{Stream, StreamExt as _, future::BoxFuture};
use tokio::time::{Instant, Sleep, sleep};
use tonic::{Status, Streaming};

use super::{Client, Error, WatchMessage, backoff::Backoff, call::with};
use lockkeeper_proto::v1::{WatchRequest, WatchResponse, locks_client::LocksClient, watch_response::What};

impl Client {
    /// Watches the locks under a prefix: their present state, then every change. Nothing is sent before the first
    /// [`Watch::next`].
    pub fn watch(&self, prefix: &str) -> Watch {
        Watch::new(self.clone(), prefix)
    }
}

/// The locks under a prefix: their present state, then every change.
///
/// Read the messages with [`Watch::next`], or use it as a [`Stream`], which does not end. It survives the loss of a
/// node and a change of leader: it resumes after the last log entry whose changes it has delivered. If that entry is
/// too old, [`WatchMessage::TooOld`] is delivered and then the state, which includes all later changes. A reader that is
/// too slow gets the state again too. A kind of message that this version does not know is skipped.
///
/// An error does not end it:
///
/// * [`Error::Malformed`]: a message has a value that this client does not understand. The message is lost, and counts as delivered: the
///   next poll returns the message after it. A reader that must miss no change starts a new watch, which begins with the state.
/// * Other errors: no node answered within the client's call limit, or the cluster refused the watch; the next poll tries again. Some of
///   them come without delay.
///
/// ```no_run
/// # async fn example(client: lockkeeper_client::Client) -> Result<(), lockkeeper_client::Error> {
/// use futures::TryStreamExt as _;
///
/// let mut watch = client.watch("reports/");
/// while let Some(message) = watch.try_next().await? {
///     println!("{message:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a watch does nothing before it is polled"]
pub struct Watch {
    client: Client,
    request: WatchRequest,
    step: WatchStep,
    backoff: Backoff,
}

enum WatchStep {
    Idle,
    Opening(BoxFuture<'static, Result<Streaming<WatchResponse>, Error>>),
    Open {
        messages: Box<Streaming<WatchResponse>>,
        /// Fires when the stream has been silent for too long.
        silent: Pin<Box<Sleep>>,
    },
    Pausing(Pin<Box<Sleep>>),
}

/// Longest silence of an open stream. The server sends its progress every second.
const SILENCE_MAX: Duration = Duration::from_secs(10);

impl Watch {
    pub(super) fn new(client: Client, prefix: &str) -> Self {
        let request = WatchRequest { prefix: prefix.to_owned(), after_index: 0 };
        Self { client, request, step: WatchStep::Idle, backoff: Backoff::default() }
    }

    /// Resumes after this log index, without the state: a value of [`Watch::index`] of an earlier watch with the same
    /// prefix. If it is too old, [`WatchMessage::TooOld`] is delivered and then the state.
    pub fn after(mut self, index: u64) -> Self {
        self.request.after_index = index;
        self
    }

    /// The log index up to which all changes were delivered. 0: none yet, or the state is not complete.
    pub fn index(&self) -> u64 {
        self.request.after_index
    }

    /// Waits for the next message: state, changes, or the index up to which there were no changes. [`Watch`] says when it fails, and how it
    /// goes on then. Cancel safe.
    ///
    /// ```no_run
    /// # async fn example(client: lockkeeper_client::Client) -> Result<(), lockkeeper_client::Error> {
    /// use lockkeeper_client::WatchMessage;
    ///
    /// let mut watch = client.watch("reports/");
    /// loop {
    ///     match watch.next().await? {
    ///         WatchMessage::State(state) => println!("{} locks", state.locks.len()),
    ///         WatchMessage::Changes(changes) => println!("{:?}", changes.changes),
    ///         WatchMessage::TooOld { .. } => println!("the index is too old; the state follows"),
    ///         WatchMessage::Progress { .. } | _ => {}
    ///     }
    /// }
    /// # }
    /// ```
    pub async fn next(&mut self) -> Result<WatchMessage, Error> {
        match futures::StreamExt::next(self).await {
            Some(message) => message,
            None => unreachable!("it does not end"),
        }
    }

    fn open(&self) -> BoxFuture<'static, Result<Streaming<WatchResponse>, Error>> {
        let client = self.client.clone();
        let request = self.request.clone();
        Box::pin(async move {
            client.caller.call(client.caller.read_policy(), |node| with!(LocksClient, node, watch, request)).await
        })
    }

    /// Records the index to resume from. In the middle of a state there is no index to resume from.
    fn note(&mut self, message: &WatchResponse) {
        match &message.what {
            Some(What::State(state)) => self.request.after_index = if state.last { state.index } else { 0 },
            // The rest of the entry follows. A resumed watch gets the whole entry again.
            Some(What::Changes(changes)) if changes.more => {}
            Some(What::Changes(changes)) => self.request.after_index = changes.index,
            Some(What::Progress(progress)) => self.request.after_index = progress.index,
            Some(What::TooOld(_)) => self.request.after_index = 0,
            None => {}
        }
    }

    fn pause(&mut self) {
        let pause = self.backoff.next(self.client.caller.jitter());
        self.step = WatchStep::Pausing(Box::pin(sleep(pause)));
    }
}

impl Stream for Watch {
    type Item = Result<WatchMessage, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let watch = self.get_mut();
        loop {
            match &mut watch.step {
                WatchStep::Idle => watch.step = WatchStep::Opening(watch.open()),
                WatchStep::Opening(opening) => match ready!(opening.as_mut().poll(context)) {
                    Ok(messages) => {
                        let silent = Box::pin(sleep(SILENCE_MAX));
                        watch.step = WatchStep::Open { messages: Box::new(messages), silent };
                    }
                    Err(error) => {
                        watch.step = WatchStep::Idle;
                        return Poll::Ready(Some(Err(error)));
                    }
                },
                WatchStep::Open { messages, silent } => match messages.poll_next_unpin(context) {
                    Poll::Ready(Some(Ok(message))) => {
                        silent.as_mut().reset(Instant::now() + SILENCE_MAX);
                        watch.backoff = Backoff::default();
                        // Record it before the conversion, so that a malformed message does not come again and again.
                        watch.note(&message);
                        if let Some(message) = WatchMessage::from_wire(message).transpose() {
                            return Poll::Ready(Some(message));
                        }
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
                WatchStep::Pausing(pause) => {
                    ready!(pause.as_mut().poll(context));
                    watch.step = WatchStep::Idle;
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
