//! A grant that was taken by force before a fault, and whose holder is told after it.
//!
//! Normal clients are told on their keep-alive streams at once and release, so the cluster drops its record. This
//! holder has no such stream. Its session outlives the fault, and the answer to its first renewal must report the loss.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use lockkeeper_client::{AttachedSession, Error, SessionOptions};
use lockkeeper_machine::{self, LockName, Mode, Token, Want};

use super::super::parties::operator::{LASTING_TTL, RunOperator};
use crate::{
    history::{Acquire, Answer, Call, Fact, Lease},
    workload::outcomes,
};

const BETWEEN_RENEWALS: Duration = Duration::from_millis(100);

/// The session that held the grant.
#[derive(Debug)]
pub(super) struct Forced {
    session: AttachedSession,
    lock: String,
    token: Token,
}

impl RunOperator {
    /// Acquires this lock, which is used once, and takes the grant by force. Returns `None` if the cluster is not available.
    pub(super) async fn acquire_and_force(&self, lock: &str) -> Option<Forced> {
        let session = self.open_detached().await?;
        let want = Want {
            name: LockName::new(lock).ok()?,
            mode: Mode::Exclusive,
            data: None,
            keep_data: false,
            must_exist: false,
        };

        let wanted = lockkeeper_machine::Acquire::new(vec![want], lockkeeper_machine::Wait::Never, 0).ok()?;

        let call = Acquire { session: session.id().to_string(), ..Acquire::default() };
        let begun = self.recorder.begin(&[lock.to_owned()], Call::Acquire(call));
        let token = match session.acquire(wanted).granted().await {
            Ok(token) => {
                begun.ok(Answer::Acquire { token: token.0, place_lost: false });
                token
            }
            Err(error) => {
                outcomes::end(begun, &error);
                return None;
            }
        };

        self.force_release(lock, token.0, true).await;
        Some(Forced { session, lock: lock.to_owned(), token })
    }

    /// Renews the session until there is an answer, which tells the holder. Then releases the grant.
    pub(super) async fn renew_until_told(&self, forced: Forced, by: Instant) {
        let Forced { session, lock, token } = forced;
        while !self.renew_once(&session).await && Instant::now() < by {
            sleep(BETWEEN_RENEWALS).await;
        }

        let id = session.id().to_string();
        let begun = self.recorder.begin(&[lock], Call::Release { session: id.clone(), token: token.0 });
        match session.release(token).await {
            Ok(()) => begun.ok(Answer::Release {}),
            Err(error) => outcomes::end(begun, &error),
        }

        let begun = self.recorder.begin(&[], Call::Close { session: id });
        match session.close().await {
            Ok(()) => begun.ok(Answer::Close {}),
            Err(error) => outcomes::end(begun, &error),
        }
    }

    /// Renews the session once. Returns whether there was a final answer. The losses that it reports are recorded before its end.
    async fn renew_once(&self, session: &AttachedSession) -> bool {
        let id = session.id().to_string();
        let begun = self.recorder.begin(&[], Call::Renew { session: id.clone() });
        match session.renew().await {
            Ok(renewal) => {
                for revoked in renewal.revoked {
                    let session = id.clone();
                    let token = Some(revoked.token.0);
                    self.recorder.fact(Fact::Lost { session, why: "revoked".to_owned(), token });
                }
                begun.ok(Answer::Renew(Lease::default()));
                true
            }
            Err(error) => {
                let is_decided = matches!(error, Error::Lost(_) | Error::Refused(_));
                outcomes::end(begun, &error);
                is_decided
            }
        }
    }

    async fn open_detached(&self) -> Option<AttachedSession> {
        let options = SessionOptions { ttl: LASTING_TTL, label: "probe".to_owned() };
        let begun_ns = self.recorder.timeline().now_ns();
        let (session, _) = self.client.open_detached(options).await.ok()?;
        let ttl_ms = u64::try_from(LASTING_TTL.as_millis()).unwrap_or(u64::MAX);
        let begun = self.recorder.begin(&[], Call::Open { session: session.id().to_string(), ttl_ms });
        begun.ok(Answer::Open(Lease { ttl_ms: None, sent_ns: Some(begun_ns) }));
        Some(session)
    }
}
