//! Forced release: an operator revokes the grants of a lock.

use std::{future::IntoFuture, pin::Pin};

use super::{Client, Error, Forced, call::with};
use lockkeeper_proto::v1::{self, force_release_response, locks_client::LocksClient};
use lockkeeper_types::{LockName, Reason, Token};

impl Client {
    /// Revokes the grants of a lock, or one of them: see [`ForceRelease`]. `reason` is told to the holders and is
    /// logged.
    pub fn force_release(&self, name: &str, reason: &str) -> ForceRelease {
        ForceRelease::new(self.clone(), name, reason)
    }
}

/// A forced release that is not sent yet: `await` it.
///
/// Revokes all grants of the lock, or [one](ForceRelease::token). A revoked grant is held until its holder releases it,
/// or to the deadline that its session has now; [`ForceRelease::now`] ends it at once. After either, the grant's
/// lock-delay still applies.
///
/// Returns the grants that this request revoked. Empty if the grant is over or nobody holds the lock; also if an
/// earlier attempt of this request already ended the grant and its answer was lost.
///
/// Without a token it is not retried after an attempt of unknown outcome: the lock may have a new holder by then. If
/// the future is dropped before it completes, the request may have taken effect. Fails as the calls of [`Client`] do.
///
/// ```no_run
/// # async fn example(client: lockkeeper_client::Client) -> Result<(), lockkeeper_client::Error> {
/// for forced in client.force_release("reports/nightly", "host 7 is gone").await? {
///     println!("{} has {:?} to let go of token {}", forced.label, forced.remaining, forced.token.0);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a forced release does nothing before it is awaited"]
pub struct ForceRelease {
    client: Client,
    name: String,
    reason: String,
    token: Option<Token>,
    now: bool,
}

impl ForceRelease {
    pub(super) fn new(client: Client, name: &str, reason: &str) -> Self {
        Self { client, name: name.to_owned(), reason: reason.to_owned(), token: None, now: false }
    }

    /// Revoke only this grant, rather than all grants of the lock.
    pub fn token(self, token: Token) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Open the lock at once. Only for holders that are known to be dead: a live one could still be working.
    pub fn now(self) -> Self {
        Self { now: true, ..self }
    }

    async fn run(self) -> Result<Vec<Forced>, Error> {
        let name = LockName::new(&self.name)?.as_str().to_owned();
        let reason = Reason::new(&self.reason)?.as_str().to_owned();
        let caller = &self.client.caller;
        let policy = if self.token.is_some() { caller.policy() } else { caller.once_policy() };
        let token = self.token.map_or(0, |token| token.0);
        let mut request =
            v1::ForceReleaseRequest { name, token, reason, now: self.now, after_token: 0, up_to_token: 0 };

        // A node answers for a bounded number of grants, so all of them may take several requests.
        let mut forced: Vec<force_release_response::Forced> = Vec::new();
        loop {
            let part = caller.call(policy, |node| with!(LocksClient, node, force_release, request)).await?;
            forced.extend(part.forced);
            let Some(last) = forced.last().filter(|_| part.more_up_to_token != 0) else { break };
            request.after_token = last.token;
            request.up_to_token = part.more_up_to_token;
        }

        // Convert at the end: a malformed value must not leave the later grants unrevoked.
        forced.into_iter().map(Forced::from_wire).collect()
    }
}

impl IntoFuture for ForceRelease {
    type Output = Result<Vec<Forced>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
