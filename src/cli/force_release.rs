//! `lockkeeper force-release` revokes the grants of a lock.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::{
    ClusterArguments, Exit, Failure,
    output::{Format, Output, print, print_document},
    show,
    table::{TableLayout, TextColumn, TextTable},
};
use crate::{client::Forced, machine::Token};

/// Revokes the grants of a lock. Their holders are told at once; the lock opens when they release it, or at their
/// session's deadline. A lock of another protocol's clients (`list` shows it as an entry) opens at once: its holder hears of it when it
/// next renews.
#[derive(Args, Debug)]
pub(super) struct RevokeGrants {
    /// The lock
    name: String,
    /// The reason, told to the holders and written to the log
    #[arg(long)]
    reason: String,
    /// Revoke only this grant, rather than all grants of the lock
    #[arg(long, value_parser = super::arguments::token)]
    token: Option<Token>,
    /// Open the lock at once, or after its lock-delay if it has one. Only for a holder that is known to be dead: a live
    /// one could still be working
    #[arg(long)]
    now: bool,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct ForceReleaseReport {
    forced: Vec<Forced>,
}

impl RevokeGrants {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let client = self.cluster.client()?;
        let mut release = client.force_release(&self.name, &self.reason);
        if let Some(token) = self.token {
            release = release.token(token);
        }
        let forced = if self.now { release.now() } else { release }.await?;

        match self.output.output {
            Format::Text => print(&text(&forced))?,
            Format::Json => print_document(&ForceReleaseReport { forced })?,
        }
        Ok(Exit::Success)
    }
}

fn text(forced: &[Forced]) -> String {
    if forced.is_empty() {
        return "the lock has no holder\n".to_owned();
    }

    let mut table = TextTable::new(
        TableLayout::for_stdout(),
        &[
            TextColumn::exact("TOKEN"),
            TextColumn::text("HOLDER"),
            TextColumn::exact("SESSION"),
            TextColumn::text("OPENS"),
        ],
    );

    for grant in forced {
        table.row(vec![
            grant.token.0.to_string(),
            show::text(&grant.label),
            grant.session_id.to_string(),
            opens(grant),
        ]);
    }
    table.take()
}

/// A lock-delay applies to a holder that did not release.
fn opens(grant: &Forced) -> String {
    let at = show::duration(grant.remaining.saturating_add(grant.lock_delay));
    match (grant.remaining, grant.lock_delay) {
        (Duration::ZERO, Duration::ZERO) => "now".into(),
        (Duration::ZERO, _) => format!("in {at}, by its lock-delay"),
        (_, Duration::ZERO) => format!("when released, or in {at}"),
        (_, delay) => format!("when released, or in {at}, including its lock-delay of {}", show::duration(delay)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::SessionId;

    #[test]
    fn a_lock_that_stays_closed_is_not_said_to_open() {
        let said = |remaining_ms, lock_delay_ms| {
            opens(&Forced {
                token: Token(7),
                session_id: SessionId(1),
                label: String::new(),
                remaining: Duration::from_millis(remaining_ms),
                lock_delay: Duration::from_millis(lock_delay_ms),
            })
        };
        assert_eq!(said(0, 0), "now");
        assert_eq!(said(0, 3_600_000), "in 1 h 0 min, by its lock-delay");
        assert_eq!(said(23_000, 0), "when released, or in 23.0 s");
        assert_eq!(said(23_000, 3_600_000), "when released, or in 1 h 0 min, including its lock-delay of 1 h 0 min");
    }
}
