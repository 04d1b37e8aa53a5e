//! Clients that are paused or killed while they hold locks.

use std::{sync::Arc, time::Duration};

use lockkeeper::chaos::{history::Fact, workload::Lock};
use rand::seq::IndexedRandom as _;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    clients::Desk,
    faults::{Order, World},
};

/// Deadline of the search for a holder.
const HOLDER_WAIT: Duration = Duration::from_secs(5);
/// Time for the tasks of a paused client to reach their stopping point.
const SETTLE: Duration = Duration::from_millis(30);
/// Limit of a query for the locks of paused clients. Short, so that they do not expire meanwhile.
const LOOK: Duration = Duration::from_millis(300);
const BETWEEN_LOOKS: Duration = Duration::from_millis(60);

impl World {
    /// Kills a client that holds locks and starts another in its place. Returns the killed client's locks.
    pub(crate) async fn kill_a_holder(&mut self) -> Vec<Lock> {
        let (stopped, held) = self.stop_holders(1).await;
        stopped.iter().for_each(|desk| self.replace(desk));
        held
    }

    /// Kills some client process during its work and starts another in its place.
    pub(crate) fn replace_client(&mut self) {
        let desk = Arc::clone(self.desks.choose(&mut self.random).expect("there are clients"));
        self.replace(&desk);
    }

    fn replace(&mut self, desk: &Desk) {
        self.recorder.fact(Fact::Died { process: desk.name() });
        self.order(Order::Crash(desk.host()));
        self.order(Order::Start(desk.host()));
        desk.going.send_replace(true);
    }

    /// Pauses about half of the clients and holds back their messages. Meanwhile the operator takes over their locks and writes: their own
    /// writes come too late when they resume.
    pub(crate) async fn pause_clients(&mut self) {
        let (stopped, held) = self.stop_holders(self.desks.len().div_ceil(2)).await;
        let hosts: Vec<_> = stopped.iter().map(|desk| desk.host()).collect();
        self.between(&hosts, &self.nodes(), Order::Hold);
        let time = self.some_ms(2_000, 4_000);
        let operator = self.operator.clone();
        tokio::join!(operator.take_over(&held), sleep(time));
        for desk in &stopped {
            desk.going.send_replace(true);
        }
        self.between(&hosts, &self.nodes(), Order::Mend);
    }

    /// Pauses `count` clients, at least one of them a holder. Returns these clients and their locks: only a paused client still holds them
    /// when the caller acts. No locks if no holder was found within `HOLDER_WAIT`.
    async fn stop_holders(&mut self, count: usize) -> (Vec<Arc<Desk>>, Vec<Lock>) {
        let by = Instant::now() + HOLDER_WAIT;
        loop {
            let stopped: Vec<_> = self.desks.choose_multiple(&mut self.random, count).map(Arc::clone).collect();
            for desk in &stopped {
                desk.going.send_replace(false);
            }
            sleep(SETTLE).await;
            let names: Vec<_> = stopped.iter().map(|desk| desk.name()).collect();
            let held = timeout(LOOK, self.operator.held_by(&names)).await.unwrap_or_default();
            if !held.is_empty() || Instant::now() >= by {
                return (stopped, held);
            }
            for desk in &stopped {
                desk.going.send_replace(true);
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }
}
