//! `lockkeeper get` shows one lock.

use clap::Args;
use serde::Serialize;

use super::{
    ClusterArguments, Exit, Failure,
    output::{Printed, TableOutput, print, print_document},
    show,
    table::{TableLayout, TextColumn, TextTable},
};
use crate::client::{LockAnswer, LockInfo};

/// Shows one lock: its holders, its waiters and its data.
#[derive(Args, Debug)]
pub(super) struct Get {
    /// The lock
    name: String,
    /// Read the table of the node that is asked, even if it lags or is cut off
    #[arg(long)]
    stale: bool,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: TableOutput,
}

#[derive(Serialize)]
struct GetReport {
    #[serde(flatten)]
    lock: LockInfo,
    index: u64,
}

impl Get {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let LockAnswer { lock, index } = self.cluster.reader(self.stale)?.get(&self.name).await?;
        match self.output.printed() {
            Printed::Table(layout) => print(&text(&lock, layout))?,
            Printed::Names => print(&format!("{}\n", show::text(lock.name.as_str())))?,
            Printed::Json => print_document(&GetReport { lock, index })?,
        }
        Ok(Exit::Success)
    }
}

fn text(lock: &LockInfo, layout: TableLayout) -> String {
    let mut text = format!("lock     {}\n", show::text(lock.name.as_str()));
    text += &match (lock.holder_count, lock.delay_remaining) {
        (0, None) => "state    free\n".to_owned(),
        (0, Some(left)) => format!("state    closed by its lock-delay for another {}\n", show::duration(left)),
        (count, _) => format!("state    held by {count}, {}{}\n", show::mode(lock.mode), show::kind(lock.kind)),
    };

    if lock.resized {
        text += &format!("size     {}, set by an operator\n", show::mode(lock.mode));
    }
    if let Some(data) = &lock.data {
        let keep = if lock.keep_data { ", kept after release" } else { "" };
        let bytes = show::count(data.len(), "byte", "bytes");
        text += &format!("data     {} ({bytes}{keep})\n", show::data_begin(data));
    }

    if !lock.holders.is_empty() {
        text += &format!("\n{}", holders(lock, layout));
    }
    if !lock.waiters.is_empty() {
        text += &format!("\n{}", waiters(lock, layout));
    }
    text
}

fn holders(lock: &LockInfo, layout: TableLayout) -> String {
    let mut table = TextTable::new(
        layout,
        &[
            TextColumn::exact("TOKEN"),
            TextColumn::text("HOLDER"),
            TextColumn::exact("MODE"),
            TextColumn::exact("AGE"),
            TextColumn::exact("SINCE").if_wide(),
            TextColumn::exact("REMAINING"),
            TextColumn::exact("SESSION"),
        ],
    );
    for holder in &lock.holders {
        table.row(vec![
            holder.token.0.to_string(),
            show::text(&holder.label),
            show::mode(holder.mode),
            show::age(holder.since),
            show::since(holder.since),
            show::duration(holder.remaining),
            holder.session_id.to_string(),
        ]);
    }

    let revoked = lock.holders.iter().filter_map(|holder| Some((holder, holder.revoked_reason.as_deref()?)));
    let revoked: String = revoked
        .map(|(holder, reason)| {
            format!("token {} is revoked, by an operator: {}\n", holder.token.0, show::text(reason))
        })
        .collect();
    table.take() + &revoked + &more(lock.holders.len(), lock.holder_count, "holder", "holders")
}

fn waiters(lock: &LockInfo, layout: TableLayout) -> String {
    let mut table = TextTable::new(
        layout,
        &[
            TextColumn::exact("TICKET"),
            TextColumn::text("WAITER"),
            TextColumn::exact("MODE"),
            TextColumn::exact("AGE"),
            TextColumn::exact("SINCE").if_wide(),
            TextColumn::exact("GIVES UP IN"),
            TextColumn::exact("SESSION"),
        ],
    );

    for waiter in &lock.waiters {
        table.row(vec![
            waiter.ticket.0.to_string(),
            show::text(&waiter.label),
            show::mode(waiter.mode),
            show::age(waiter.since),
            show::since(waiter.since),
            waiter.remaining.map_or("never".into(), show::duration),
            waiter.session_id.to_string(),
        ]);
    }

    table.take() + &more(lock.waiters.len(), lock.queue_length, "waiter", "waiters")
}

fn more(shown: usize, all: u64, one: &str, many: &str) -> String {
    match all.saturating_sub(shown as u64) {
        0 => String::new(),
        1 => format!("and 1 more {one}\n"),
        rest => format!("and {rest} more {many}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::views::tests::{holder, lock_without_holders},
        *,
    };
    use crate::machine::Mode;

    #[test]
    fn a_free_lock_is_one_that_nothing_is_known_of() {
        assert_eq!(text(&lock_without_holders("jobs"), TableLayout::default()), "lock     jobs\nstate    free\n");
    }

    #[test]
    fn those_beyond_the_page_are_counted() {
        let lock = LockInfo {
            mode: Some(Mode::Shared),
            holders: vec![holder(7, "ann")],
            holder_count: 3,
            data: Some(b"x".to_vec()),
            ..lock_without_holders("jobs")
        };
        let text = text(&lock, TableLayout::default());
        assert!(text.contains("state    held by 3, shared\ndata     x (1 byte)\n\nTOKEN  HOLDER"), "{text}");
        assert!(text.ends_with("and 2 more holders\n"), "{text}");
    }
}
