//! `force-release`: takes a lock from its holder.

use clap::Args;
use serde::Serialize;

use super::{
    Cluster, Exit, Failure,
    output::{Format, Output, Table, print, print_document},
    show, views,
};
use crate::proto::v1::force_release_response;

/// Takes a lock from its holders. They are told at once; the lock opens when they let go, or at the deadline of their session.
#[derive(Args, Debug)]
pub(super) struct ForceRelease {
    /// The lock.
    name: String,
    /// Why. The holder is told, and the log keeps it.
    #[arg(long)]
    reason: String,
    /// Only this grant, rather than all of the lock's.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    token: Option<u64>,
    /// Open the lock at once. Only for a holder that is known to be dead: another one could be working still.
    #[arg(long)]
    now: bool,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Document {
    forced: Vec<views::Forced>,
}

impl ForceRelease {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let client = self.cluster.client()?;
        let forced = client.force_release(&self.name, self.token, &self.reason, self.now).await?;
        match self.output.output {
            Format::Text => print(&text(&forced))?,
            Format::Json => {
                print_document(&Document { forced: forced.into_iter().map(views::Forced::from).collect() })?
            }
        }
        Ok(Exit::Success)
    }
}

fn text(forced: &[force_release_response::Forced]) -> String {
    if forced.is_empty() {
        return "nobody held it\n".to_owned();
    }
    let mut table = Table::new(&["TOKEN", "HOLDER", "SESSION", "OPENS"]);
    for grant in forced {
        table.row(vec![
            grant.token.to_string(),
            show::cell(&grant.label),
            show::text(&grant.session_id),
            match grant.remaining_ms {
                0 => "now".into(),
                ms => format!("when it lets go, or in {}", show::duration(ms)),
            },
        ]);
    }
    table.take()
}
