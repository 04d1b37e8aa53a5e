//! `force-release`: takes a lock from its holder.

use clap::Args;
use serde::Serialize;

use super::{
    Cluster, Exit, Failure,
    output::{Format, Output, Table, print, print_document},
    show, views,
};
use crate::{machine::Token, proto::v1::force_release_response};

/// Takes a lock from its holders. They are told at once; the lock opens when they let go, or at the deadline of their session.
#[derive(Args, Debug)]
pub(super) struct ForceRelease {
    /// The lock.
    name: String,
    /// Why. The holder is told, and the log keeps it.
    #[arg(long)]
    reason: String,
    /// Only this grant, rather than all of the lock's.
    #[arg(long, value_parser = super::arguments::token)]
    token: Option<Token>,
    /// Open the lock at once, or after its lock-delay if it has one. Only for a holder that is known to be dead: another one could be
    /// working still.
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
        let mut release = client.force_release(&self.name, &self.reason);
        if let Some(token) = self.token {
            release = release.token(token);
        }
        let forced = if self.now { release.now() } else { release }.await?;
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
        table.row(vec![grant.token.to_string(), show::cell(&grant.label), show::text(&grant.session_id), opens(grant)]);
    }
    table.take()
}

/// A lock-delay keeps it closed for whoever did not let go.
fn opens(grant: &force_release_response::Forced) -> String {
    let at = show::duration(grant.remaining_ms.saturating_add(grant.lock_delay_ms));
    match (grant.remaining_ms, grant.lock_delay_ms) {
        (0, 0) => "now".into(),
        (0, _) => format!("in {at}, by its lock-delay"),
        (_, 0) => format!("when it lets go, or in {at}"),
        (_, delay_ms) => {
            format!("when it lets go, or in {at}, its lock-delay of {} included", show::duration(delay_ms))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_stays_closed_is_not_said_to_open() {
        let said = |remaining_ms, lock_delay_ms| {
            opens(&force_release_response::Forced { remaining_ms, lock_delay_ms, ..Default::default() })
        };
        assert_eq!(said(0, 0), "now");
        assert_eq!(said(0, 3_600_000), "in 1 h 0 min, by its lock-delay");
        assert_eq!(said(23_000, 0), "when it lets go, or in 23.0 s");
        assert_eq!(said(23_000, 3_600_000), "when it lets go, or in 1 h 0 min, its lock-delay of 1 h 0 min included");
    }
}
