//! `lockkeeper remove-waiter` removes an acquire from the queue.

use clap::Args;
use serde::Serialize;

use super::{
    ClusterArguments, Exit, Failure, arguments,
    output::{Format, Output, print, print_document},
    show,
};
use crate::{client::Waiter, machine::Ticket};

/// Removes a waiting acquire. Its client gets an error and does not retry by itself. An acquire of several locks leaves
/// all its queues.
#[derive(Args, Debug)]
pub(super) struct RemoveWait {
    /// The lock
    name: String,
    /// The ticket of the acquire, as `get NAME` shows it
    #[arg(long, value_parser = arguments::ticket)]
    ticket: Ticket,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct RemovedReport {
    removed: Option<Waiter>,
}

impl RemoveWait {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let removed = self.cluster.client()?.remove_waiter(&self.name, self.ticket).await?;
        match self.output.output {
            Format::Text => print(&self.text(removed.as_ref()))?,
            Format::Json => print_document(&RemovedReport { removed })?,
        }
        Ok(Exit::Success)
    }

    fn text(&self, removed: Option<&Waiter>) -> String {
        match removed {
            None => format!("no acquire with ticket {} waits for lock {}\n", self.ticket.0, show::text(&self.name)),
            Some(waiter) => format!("removed {} of session {}\n", show::text(&waiter.label), waiter.session_id),
        }
    }
}
