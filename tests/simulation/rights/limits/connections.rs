//! A client whose identity has a limit of connections: it opens as many to one node as it may, or more, at one moment.
//!
//! The links between this host and the nodes are never cut, and lose no message. So a connection that the client has closed ends at its
//! node, too, as soon as the node computes. After a pause, and after the node has answered somebody else, none of them is left there. Then
//! as many as are allowed must be served, and of more, no more may be.

use std::{ops::RangeInclusive, sync::Arc};

use futures::future::join_all;
use lockkeeper::proto::v1::{GetRequest, locks_client::LocksClient};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use super::{AWAITED, BurstAnswers, CALLS_PAUSE, CONNECTIONS, LimitedIdentity, RightsJudge, timed, with_bearer};
use crate::{clients, network};

/// How many connections beyond the limit it opens.
const FURTHER: RangeInclusive<u64> = 1..=3;
/// This number of refusals without a reason, one after the other, is wrong.
const REFUSALS_MAX: u32 = 2;

/// Opens connections, each time to one node.
pub(super) struct ConnectingClient {
    judge: Arc<RightsJudge>,
    seats: u64,
    random: StdRng,
    /// The limit of connections at one node.
    most: u64,
    /// Refusals without a reason, one after the other.
    refusals: u32,
}

impl ConnectingClient {
    pub(super) fn new(judge: Arc<RightsJudge>, seats: u64, seed: u64, most: u64) -> Self {
        Self { judge, seats, random: StdRng::seed_from_u64(seed), most, refusals: 0 }
    }

    /// Opens connections after pauses, until the run is over.
    pub(super) async fn work(mut self, finish: &CancellationToken) {
        while !finish.is_cancelled() {
            sleep(CALLS_PAUSE).await;
            let is_within = self.random.random_bool(0.5);
            let further = if is_within { 0 } else { self.random.random_range(FURTHER) };
            let seat = self.random.random_range(1..=self.seats);

            // All of them go to one node, also if another node gets the seat meanwhile.
            let Some(address) = network::seated(seat).map(network::client_address) else { continue };
            if has_answered(&address).await {
                let count = self.most + further;
                self.open(&address, count).await;
            }
        }
    }

    /// Opens this number of connections at one moment, and sends a call on each of them.
    async fn open(&mut self, address: &str, count: u64) {
        let opened: Vec<_> = (0..count).map(|_| LocksClient::new(clients::channel(address))).collect();
        let mut answers = ask(&opened).await;
        if answers.served > self.most {
            // If the node has ended and begun again among the calls, it has counted anew. It has no room for all of them once more.
            answers = ask(&opened).await;
        }
        self.note(address, count, &answers);
    }

    fn note(&mut self, address: &str, count: u64, answers: &BurstAnswers) {
        let BurstAnswers { served, limited, unanswered, took: _ } = *answers;
        let most = self.most;
        // A node that is gone, or stands still, says nothing about its limit.
        if unanswered > 0 {
            return;
        }

        if served > most {
            self.judge.complain(format!(
                "calls on {served} of {count} connections to {address} were served, and {most} are allowed at one time"
            ));
        }
        if count > most {
            if limited > 0 {
                self.judge.reach(CONNECTIONS);
            }
            return;
        }

        if limited == 0 {
            self.refusals = 0;
            self.judge.count("connections within their limit");
            return;
        }
        self.refusals += 1;
        if self.refusals >= REFUSALS_MAX {
            self.refusals = 0;
            self.judge.complain(format!(
                "{CONNECTIONS} refused {limited} of {count} connections to {address} after a pause, and {most} are allowed"
            ));
        }
    }
}

/// Whether the node answers a caller without an identity, which has no limit: then it has read everything that came before.
async fn has_answered(address: &str) -> bool {
    let message = GetRequest { name: AWAITED.to_owned(), stale: true, ..GetRequest::default() };
    let mut client = LocksClient::new(clients::channel(address));
    timed(client.get(message)).await.is_ok()
}

/// Sends a call on each of these connections at one moment. None of them is closed before all have been answered.
async fn ask(opened: &[LocksClient<Channel>]) -> BurstAnswers {
    let began = Instant::now();
    let calls = opened.iter().map(|client| {
        let message = GetRequest { name: AWAITED.to_owned(), stale: true, ..GetRequest::default() };
        let request = with_bearer(&LimitedIdentity::Connector.token(), message);
        let mut client = client.clone();
        async move { timed(client.get(request)).await.map(drop) }
    });
    let all = join_all(calls).await;

    BurstAnswers::count(all, began.elapsed())
}
