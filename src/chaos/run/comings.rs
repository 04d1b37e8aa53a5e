//! Locks that come and go, beside one that stays: what is granted is seen at once, whoever is asked, and what is given back is the one
//! thing that was given back.
//!
//! Clients read through the library, which asks whoever leads. A node that only believes to lead is asked too seldom to be found out, so
//! here each node is asked, directly, for what the moment before was granted or given back by whichever of them leads.

use std::time::Duration;

use futures::future;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::transport::Channel;

use super::operator::{Operator, PROBE_TTL};
use crate::{
    chaos::{
        history::{Answer, Call, Mode},
        workload::{ATTEMPT_LIMIT, locks::Lock, words},
    },
    client::Session,
    proto::v1::{GetRequest, locks_client::LocksClient},
};

const EVERY: Duration = Duration::from_millis(250);

impl Operator {
    /// In the background, until it is told to finish: then nothing of it is left.
    pub fn come_and_go(&self, finish: CancellationToken) -> AbortOnDropHandle<()> {
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

    /// For as long as the session lives.
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

    /// Asks each node, and nobody else.
    async fn ask_all(&self, lock: &str) {
        future::join_all(self.nodes.iter().map(|node| self.ask(node.clone(), lock))).await;
    }

    async fn ask(&self, node: Channel, lock: &str) {
        let begun = self.recorder.begin(&[lock.to_owned()], Call::Get {});
        let message = GetRequest { name: lock.to_owned(), ..GetRequest::default() };
        match timeout(ATTEMPT_LIMIT, LocksClient::new(node).get(message)).await {
            Ok(Ok(answer)) => begun.ok(Answer::Get(words::view(answer.get_ref()))),
            Ok(Err(status)) => words::end_call(begun, &status),
            Err(_) => begun.unknown("no answer in time"),
        }
    }
}
