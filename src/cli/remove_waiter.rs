//! `remove-waiter`: takes an acquire out of the queue.

use clap::Args;
use serde::Serialize;

use super::{
    Cluster, Exit, Failure, arguments,
    output::{Format, Output, print, print_document},
    show, views,
};
use crate::{machine::Ticket, proto::v1::Waiter};

/// Removes an acquire that waits for a lock. Its client is told, and does not come back by itself. One of several locks leaves all queues.
#[derive(Args, Debug)]
pub(super) struct RemoveWaiter {
    /// The lock.
    name: String,
    /// Which acquire: the ticket that `get NAME` shows.
    #[arg(long, value_parser = arguments::ticket)]
    ticket: Ticket,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Document {
    removed: Option<views::Waiter>,
}

impl RemoveWaiter {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let removed = self.cluster.client()?.remove_waiter(&self.name, self.ticket).await?;
        match self.output.output {
            Format::Text => print(&text(removed.as_ref()))?,
            Format::Json => print_document(&Document { removed: removed.map(views::Waiter::from) })?,
        }
        Ok(Exit::Success)
    }
}

fn text(removed: Option<&Waiter>) -> String {
    match removed {
        None => "nobody waited for it with this ticket\n".to_owned(),
        Some(waiter) => {
            format!("removed {} of session {}\n", show::text(&waiter.label), show::text(&waiter.session_id))
        }
    }
}
