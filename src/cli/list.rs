//! `list`: the locks under a prefix.

use clap::Args;

use super::{
    Cluster, Exit, Failure,
    output::{Output, Pages},
    show, views,
};
use crate::proto::v1::LockInfo;

/// Lists the locks that have a holder, a waiter, a lock-delay or data.
#[derive(Args, Debug)]
pub(super) struct List {
    /// Prefix of the lock names
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    /// Read the table of the node that is asked, even if it lags or is cut off
    #[arg(long)]
    stale: bool,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    output: Output,
}

impl List {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let client = self.cluster.reader(self.stale)?;
        let header = ["NAME", "STATE", "HOLDER", "TOKEN", "SINCE", "REMAINING", "WAITING", "DATA"];
        let mut pages = Pages::new(self.output.output, &header);
        let mut page_token = String::new();
        loop {
            let page = client.list(&self.prefix, &page_token).await?;
            pages.write(page.locks, row, views::Lock::from)?;
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        pages.end()?;
        Ok(Exit::Success)
    }
}

/// Shows only the first holder; `get` shows all.
fn row(lock: &LockInfo) -> Vec<String> {
    let first = lock.holders.first();
    let others = match lock.holder_count {
        0 | 1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let none = || "-".to_owned();
    vec![
        show::text(&lock.name),
        state(lock),
        first.map_or_else(none, |holder| format!("{}{others}", show::cell(&holder.label))),
        first.map_or_else(none, |holder| holder.token.to_string()),
        first.map_or_else(none, |holder| show::since(holder.since_unix_ms)),
        first.map_or_else(none, |holder| show::duration(holder.remaining_ms)),
        lock.queue_length.to_string(),
        lock.data.as_deref().map_or_else(String::new, show::data),
    ]
}

fn state(lock: &LockInfo) -> String {
    match (lock.holder_count, lock.delay_remaining_ms) {
        (0, 0) => "free".into(),
        (0, ms) => format!("closed for {}", show::duration(ms)),
        _ if lock.holders.iter().any(|holder| !holder.revoked_reason.is_empty()) => "revoked".into(),
        _ => show::mode(lock.mode.as_ref()),
    }
}
