//! Releases, retried until nothing is held: of a guard, of an abandoned acquire, of a grant that an operator revoked.

use std::sync::Arc;

use tokio::time::sleep;

use super::{Error, Refusal, backoff::Backoff, call::RetryPolicy, core::Core, requests::Outstanding};
use lockkeeper_proto::v1::{ReleaseRequest, release_request::Target};

/// Releases the target, retrying for as long as the session lives: a grant must never stay held by accident. A refusal
/// that leaves the grant held is retried too, and so is one after a copy without an answer.
pub(super) async fn release(core: &Core, target: Target) -> Result<(), Error> {
    let outstanding = core.requests.begin();
    let caller = &core.client.caller;
    let policy = RetryPolicy { limit: None, ..caller.policy() };
    let mut backoff = Backoff::default();

    loop {
        let session_id = core.id.to_string();
        let request = ReleaseRequest { session_id, request: Some(outstanding.message()), target: Some(target) };
        let answer = core.while_alive(caller.call(policy, |node| node.pipeline.release(request.clone()))).await;
        let why = if let Err(Error::Refused(refused)) = &answer
            && !says_that_nothing_is_held(&refused.reason)
        {
            Some(refused.to_string())
        } else if let Err(Error::Unknown { why }) = &answer {
            // The first copy had no answer, and a node refused the next one: by a policy, for example, that is about to change.
            Some(why.clone())
        } else {
            None
        };
        match why {
            Some(why) => {
                tracing::warn!(session = %core.id, why, "a release was refused; it is tried again");
                let pause = sleep(backoff.next(caller.jitter()));
                let paused = async {
                    pause.await;
                    Ok(())
                };
                core.while_alive(paused).await?;
            }
            None => return answer.map(|_| ()),
        }
    }
}

/// Or whether a retry of the same request would always be refused.
fn says_that_nothing_is_held(reason: &Refusal) -> bool {
    matches!(reason, Refusal::NotHeld | Refusal::InvalidArgument | Refusal::RequestStale | Refusal::RequestReused)
}

/// Releases a grant that was taken by force, which tells the cluster that the holder knows of its loss.
pub(super) async fn acknowledge(core: &Core, token: u64) {
    // The release is acknowledged, the guard has released the grant, or the session is over: in each case nothing is left to do.
    let _ = release(core, Target::Token(token)).await;
}

/// Releases an acquire whose caller is gone. Its request id stays outstanding until then, so that the server keeps the
/// reply.
pub(super) fn abandon(core: &Arc<Core>, acquire: Outstanding) {
    let shared = Arc::clone(core);
    core.spawn(async move {
        let target = Target::AcquireRequestId(acquire.id());
        if let Err(error) = release(&shared, target).await {
            tracing::debug!(session = %shared.id, id = acquire.id(), %error, "abandoned an acquire that was over");
        }
        drop(acquire);
    });
}
