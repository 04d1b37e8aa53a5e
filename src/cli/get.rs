//! `get`: one lock.

use clap::Args;
use serde::Serialize;

use super::{
    Cluster, Exit, Failure,
    output::{Format, Output, Table, print, print_document},
    show, views,
};
use crate::proto::v1::LockInfo;

/// Shows one lock: its holders, its waiters and its data.
#[derive(Args, Debug)]
pub(super) struct Get {
    /// The lock
    name: String,
    /// Read the table of the node that is asked, even if it lags or is cut off
    #[arg(long)]
    stale: bool,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    lock: views::Lock,
    index: u64,
}

impl Get {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let answer = self.cluster.reader(self.stale)?.get(&self.name).await?;
        let lock = answer.lock.unwrap_or_else(|| LockInfo { name: self.name, ..LockInfo::default() });
        match self.output.output {
            Format::Text => print(&text(&lock))?,
            Format::Json => print_document(&Document { lock: lock.into(), index: answer.index })?,
        }
        Ok(Exit::Success)
    }
}

fn text(lock: &LockInfo) -> String {
    let mut text = format!("lock     {}\n", show::text(&lock.name));
    text += &match (lock.holder_count, lock.delay_remaining_ms) {
        (0, 0) => "state    free\n".to_owned(),
        (0, ms) => format!("state    closed by its lock-delay for another {}\n", show::duration(ms)),
        (count, _) => format!("state    held by {count}, {}\n", show::mode(lock.mode.as_ref())),
    };
    if lock.resized {
        text += &format!("size     {}, set by an operator\n", show::mode(lock.mode.as_ref()));
    }
    if let Some(data) = &lock.data {
        let keep = if lock.keep_data { ", kept after release" } else { "" };
        let bytes = show::count(data.len(), "byte", "bytes");
        text += &format!("data     {} ({bytes}{keep})\n", show::data(data));
    }
    if !lock.holders.is_empty() {
        text += &format!("\n{}", holders(lock));
    }
    if !lock.waiters.is_empty() {
        text += &format!("\n{}", waiters(lock));
    }
    text
}

fn holders(lock: &LockInfo) -> String {
    let mut table = Table::new(&["TOKEN", "HOLDER", "MODE", "SINCE", "REMAINING", "SESSION", "REVOKED"]);
    for holder in &lock.holders {
        table.row(vec![
            holder.token.to_string(),
            show::cell(&holder.label),
            show::mode(holder.mode.as_ref()),
            show::since(holder.since_unix_ms),
            show::duration(holder.remaining_ms),
            show::text(&holder.session_id),
            show::text(&holder.revoked_reason),
        ]);
    }
    table.take() + &more(lock.holders.len(), lock.holder_count, "holder", "holders")
}

fn waiters(lock: &LockInfo) -> String {
    let mut table = Table::new(&["TICKET", "WAITER", "MODE", "SINCE", "GIVES UP IN", "SESSION"]);
    for waiter in &lock.waiters {
        table.row(vec![
            waiter.ticket.to_string(),
            show::cell(&waiter.label),
            show::mode(waiter.mode.as_ref()),
            show::since(waiter.since_unix_ms),
            waiter.remaining_ms.map_or("never".into(), show::duration),
            show::text(&waiter.session_id),
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
    use super::*;
    use crate::proto::v1::{Holder, Mode, mode};

    #[test]
    fn a_free_lock_is_one_that_nothing_is_known_of() {
        let lock = LockInfo { name: "jobs".into(), ..LockInfo::default() };
        assert_eq!(text(&lock), "lock     jobs\nstate    free\n");
    }

    #[test]
    fn those_beyond_the_page_are_counted() {
        let shared = Mode { kind: Some(mode::Kind::Shared(mode::Shared {})) };
        let holder = Holder { token: 7, label: "ann".into(), mode: Some(shared), ..Holder::default() };
        let lock = LockInfo {
            name: "jobs".into(),
            mode: Some(shared),
            holders: vec![holder],
            holder_count: 3,
            data: Some(b"x".to_vec()),
            ..LockInfo::default()
        };
        let text = text(&lock);
        assert!(text.contains("state    held by 3, shared\ndata     x (1 byte)\n\nTOKEN  HOLDER"), "{text}");
        assert!(text.ends_with("and 2 more holders\n"), "{text}");
    }
}
