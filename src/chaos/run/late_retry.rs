//! A request whose answer is lost for longer than its lease, and that is sent again, as an SDK does.
//!
//! The request takes effect, and the session is not renewed, so the lock goes to another client. Then the same request comes again: nobody
//! may now be told that it has the lock. The workload's clients repeat requests too, but seldom for so long.

use std::{net::SocketAddr, time::Duration};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::transport::Channel;

use lockkeeper_local::free_port;
use lockkeeper_machine::SessionId;
use lockkeeper_proto::v1::{OpenSessionRequest, locks_client::LocksClient, sessions_client::SessionsClient};

use super::super::parties::{
    EXPIRY_BOUND_MS,
    operator::{PROBE_TTL, RunOperator},
};
use crate::{
    dial::Dial,
    history::{Answer, Call, Lease, Mode},
    links::{Direction, Link},
    workload::{ATTEMPT_LIMIT, TTLS, locks::Lock, outcomes},
};

const TTL: Duration = TTLS[0];
const BETWEEN_ROUNDS: Duration = Duration::from_millis(500);
/// Time limit of the other client's wait: the rest of the lease, with the bound that the run promises.
const PATIENCE: Duration = Duration::from_millis(2_000 + EXPIRY_BOUND_MS);
/// Maximum number of times that the request comes again.
const RETRIES: u32 = 4;

impl RunOperator {
    /// Sends one request after another at these nodes in turn, whose addresses have no link. Runs in the background until `finish` is
    /// cancelled.
    pub fn retry_late(
        &self,
        dial: Dial,
        nodes: Vec<SocketAddr>,
        seed: u64,
        finish: CancellationToken,
    ) -> AbortOnDropHandle<()> {
        let operator = self.clone();
        let mut random = StdRng::seed_from_u64(seed);
        AbortOnDropHandle::new(tokio::spawn(async move {
            for (number, node) in (1_u32..).zip(nodes.into_iter().cycle()) {
                if finish.is_cancelled() {
                    return;
                }
                // A node that does not answer gets its turn in the next round.
                let _ = operator.retry_one_late(&dial, node, number, SessionId(random.random())).await;
                sleep(BETWEEN_ROUNDS).await;
            }
        }))
    }

    async fn retry_one_late(&self, dial: &Dial, node: SocketAddr, number: u32, id: SessionId) -> Option<()> {
        let link = Link::new(free_port().ok()?, node, number.into()).ok()?;
        let channel = dial.channel(&link.address().to_string(), ATTEMPT_LIMIT);
        let session = id.to_string();
        let lock = Lock { name: format!("late/{number}"), mode: Mode::Exclusive };
        self.open_unrenewed(channel.clone(), &session).await?;
        let other = self.open_for(PROBE_TTL, Instant::now()).await?;

        link.set_backward(Direction::Held);
        let mut is_answered = self.send(LocksClient::new(channel.clone()), &session, &lock.name, false).await;
        let granted = self.acquire(&other, &lock, PATIENCE).await;
        // The answer is lost with the connection.
        link.reset();
        link.heal();

        for _ in 0..RETRIES {
            if is_answered {
                break;
            }
            sleep(BETWEEN_ROUNDS / 4).await;
            is_answered = self.send(LocksClient::new(channel.clone()), &session, &lock.name, true).await;
        }
        if let Ok(guard) = granted {
            self.release(guard).await;
        }
        self.close(other).await;
        Some(())
    }

    async fn open_unrenewed(&self, node: Channel, session: &str) -> Option<()> {
        let ttl_ms = u32::try_from(TTL.as_millis()).ok()?;

        let call = Call::Open { session: session.to_owned(), ttl_ms: ttl_ms.into() };
        let begun = self.recorder.begin(&[], call);

        let message = OpenSessionRequest { session_id: session.to_owned(), ttl_ms, label: "late".to_owned() };
        match timeout(ATTEMPT_LIMIT, SessionsClient::new(node).open(message)).await {
            Ok(Ok(_)) => {
                begun.ok(Answer::Open(Lease::default()));
                return Some(());
            }
            Ok(Err(status)) => outcomes::end_call(begun, &status),
            Err(_) => begun.unknown("no answer in time"),
        }
        None
    }
}
