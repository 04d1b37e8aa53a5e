//! Short-lived locks beside a long-lived one: a grant must be visible at once on every node, and a release must end
//! exactly the released grant.
//!
//! Clients read through the library, which asks the leader. A deposed leader that does not know of its successor is rarely asked. So this
//! test asks each node directly about a lock that was granted or released a moment before.

use std::time::Duration;

use futures::future;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::transport::Channel;

use lockkeeper_client::Session;
use lockkeeper_proto::v1::{GetRequest, locks_client::LocksClient};

use super::super::parties::operator::{PROBE_TTL, RunOperator};
use crate::{
    history::{Answer, Call, Mode},
    workload::{ATTEMPT_LIMIT, locks::Lock, outcomes},
};

const EVERY: Duration = Duration::from_millis(250);

impl RunOperator {
    /// Runs in the background until `finish` is cancelled. Then all its locks are released.
    pub fn churn(&self, finish: CancellationToken) -> AbortOnDropHandle<()> {
        let operator = self.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut number = 0;
            while !finish.is_cancelled() {
                if let Some(session) = operator.open_for(PROBE_TTL, Instant::now()).await {
                    operator.beside_one_that_stays(&session, &mut number, &finish).await;
                    operator.close(session).await;
                }
                sleep(EVERY).await;
            }
        }))
    }

    /// Runs for as long as the session lives.
    async fn beside_one_that_stays(&self, session: &Session, number: &mut u64, finish: &CancellationToken) {
        let mut next = || {
            *number += 1;
            Lock { name: format!("fresh/{number}"), mode: Mode::Exclusive }
        };
        let staying = next();
        let Ok(stays) = self.acquire(session, &staying, Duration::ZERO).await else { return };

        while session.loss().is_none() && !finish.is_cancelled() {
            let lock = next();
            let Ok(comes) = self.acquire(session, &lock, Duration::ZERO).await else { continue };
            self.ask_all(&lock.name).await;

            self.release(comes).await;
            future::join(self.ask_all(&lock.name), self.ask_all(&staying.name)).await;
            sleep(EVERY).await;
        }
        self.release(stays).await;
    }

    /// Asks each node directly.
    async fn ask_all(&self, lock: &str) {
        future::join_all(self.nodes.all().into_iter().map(|node| self.ask(node, lock))).await;
    }

    async fn ask(&self, node: Channel, lock: &str) {
        let begun = self.recorder.begin(&[lock.to_owned()], Call::Get {});
        let message = GetRequest { name: lock.to_owned(), ..GetRequest::default() };
        match timeout(ATTEMPT_LIMIT, LocksClient::new(node).get(message)).await {
            Ok(Ok(answer)) => begun.ok(Answer::Get(outcomes::view_of_node(answer.get_ref()))),
            Ok(Err(status)) => outcomes::end_call(begun, &status),
            Err(_) => begun.unknown("no answer in time"),
        }
    }
}
