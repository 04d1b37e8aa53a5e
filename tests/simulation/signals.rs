//! Clients of Redis that wait in a simulated run: for items of lists, for messages of channels, and for being the only subscriber.
//!
//! They work while faults strike. When all faults are over, they look whether everything is where it has to be.

mod items;
mod messages;
mod subscribed;

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    contenders::{LIMIT, in_time},
    redis::{Connection, Reply},
};
use items::ItemsJudge;
use messages::MessagesJudge;
use subscribed::SubscribedJudge;

/// In which all must be where it has to be, after the last fault.
const SETTLED: Duration = Duration::from_secs(20);
const POPPERS: u64 = 3;
const SUBSCRIBERS: u64 = 3;
const CONTENDERS: u64 = 3;

/// What these clients saw, and what follows from it.
#[derive(Default)]
pub(crate) struct SignalsJudge {
    items: ItemsJudge,
    messages: MessagesJudge,
    subscribed: SubscribedJudge,
    /// The clients have looked at everything for the last time.
    concluded: CancellationToken,
}

impl SignalsJudge {
    /// Returns after the clients have looked at everything for the last time.
    pub(crate) async fn concluded(&self) {
        self.concluded.cancelled().await;
    }

    /// The node of the client that has a lock by its subscription, if one has.
    pub(crate) fn holder_node(&self) -> Option<u64> {
        self.subscribed.holder_node()
    }

    /// What cannot have been.
    pub(crate) fn complaints(&self) -> Vec<String> {
        [self.items.complaints(), self.messages.complaints(), self.subscribed.complaints()].concat()
    }

    /// What the clients did.
    pub(crate) fn counts(&self) -> Vec<(String, u64)> {
        let counts = self.items.counts().into_iter().chain(self.messages.counts()).chain(self.subscribed.counts());
        counts.map(|(what, count)| (what.to_owned(), count)).collect()
    }

    /// The activity that a meaningful run needs and this one lacks.
    pub(crate) fn missing(&self) -> Vec<String> {
        let counts = self.counts().into_iter().filter(|(_, count)| *count == 0);
        counts.filter(|(what, _)| *what != messages::ENDED).map(|(what, _)| format!("no {what}")).collect()
    }
}

/// The client process of a run.
pub(crate) struct SignalsClientProcess {
    /// The number of endpoints.
    pub(crate) seats: u64,
    pub(crate) seed: u64,
    pub(crate) judge: Arc<SignalsJudge>,
    pub(crate) finish: CancellationToken,
}

impl SignalsClientProcess {
    /// The name of its host.
    pub(crate) const HOST: &'static str = "signals";

    /// Works until the run is over, and then looks at everything.
    pub(crate) async fn work(self: Arc<Self>) -> turmoil::Result {
        let waiting = |number: u64| WaitingClient {
            name: number.to_string(),
            seats: self.seats,
            random: StdRng::seed_from_u64(self.seed ^ (number << 8)),
            finish: self.finish.clone(),
        };
        let SignalsJudge { items, messages, subscribed, concluded } = &*self.judge;

        let poppers = join_all((0..POPPERS).map(|number| items::pop(waiting(10 + number), items)));
        let contenders = join_all((0..CONTENDERS).map(|number| subscribed::contend(waiting(30 + number), subscribed)));
        let subscribers = join_all((0..SUBSCRIBERS).map(|number| messages::subscribe(waiting(20 + number), messages)));
        let publisher = async {
            messages::publish(waiting(2), messages).await;
            messages::publish_last(waiting(3), messages).await;
        };
        let pusher = items::push(waiting(1), items);
        tokio::join!(async { tokio::join!(poppers, pusher) }, subscribers, publisher, contenders);

        items::look_at_all(waiting(4), items).await;
        items::wait_in_turn(waiting(5), items).await;
        concluded.cancel();
        Ok(())
    }
}

/// A client, and the connections that it opens.
struct WaitingClient {
    /// A name that no other has.
    name: String,
    seats: u64,
    random: StdRng,
    finish: CancellationToken,
}

impl WaitingClient {
    /// Opens a connection to any node.
    async fn open(&mut self) -> Option<Connection> {
        let seat = self.any_seat();
        self.open_at(seat).await
    }

    fn any_seat(&mut self) -> u64 {
        self.random.random_range(1..=self.seats)
    }

    async fn open_at(&self, seat: u64) -> Option<Connection> {
        in_time(async { Connection::open(seat).await.ok() }).await
    }

    async fn pause(&mut self, ms: std::ops::Range<u64>) {
        sleep(Duration::from_millis(self.random.random_range(ms))).await;
    }

    /// True with this probability in percent.
    fn percent(&mut self, of_hundred: u32) -> bool {
        self.random.random_range(0..100) < of_hundred
    }

    /// Asks until it is answered, and not by an error: after the last fault. `None`: it never was.
    async fn insist(&mut self, words: &[&str]) -> Option<Reply> {
        let until = Instant::now() + SETTLED;
        while Instant::now() < until {
            if let Some(mut connection) = self.open().await
                && let Some(reply) = connection.ask_within(words, LIMIT).await
                && !matches!(reply, Reply::Refusal(_))
            {
                return Some(reply);
            }
            self.pause(50..100).await;
        }
        None
    }
}
