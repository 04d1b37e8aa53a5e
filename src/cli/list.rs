//! `lockkeeper list` shows the locks under a prefix.

use clap::Args;

use super::{
    ClusterArguments, Exit, Failure,
    output::{Pages, TableOutput},
    paging::each_page,
    show,
    table::TextColumn,
};
use crate::client::LockInfo;

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
    cluster: ClusterArguments,
    #[command(flatten)]
    output: TableOutput,
}

impl List {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let client = self.cluster.reader(self.stale)?;
        let mut pages = Pages::new(self.output.printed(), &COLUMNS);

        let read = async |token: &str| client.list(&self.prefix, token).await;
        each_page(read, |page| {
            pages.write(&page.locks, row, |lock| show::text(lock.name.as_str()))?;
            Ok(page.next_page_token)
        })
        .await?;

        pages.end()?;
        Ok(Exit::Success)
    }
}

const COLUMNS: [TextColumn; 9] = [
    TextColumn::text("NAME"),
    TextColumn::exact("STATE"),
    TextColumn::text("HOLDER"),
    TextColumn::exact("TOKEN"),
    TextColumn::exact("AGE"),
    TextColumn::exact("SINCE").if_wide(),
    TextColumn::exact("REMAINING"),
    TextColumn::exact("WAITING"),
    TextColumn::text("DATA"),
];

/// Shows only the first holder; `get` shows all.
fn row(lock: &LockInfo) -> Vec<String> {
    let first = lock.holders.first();
    let others = match lock.holder_count {
        0 | 1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let none = || "-".to_owned();

    vec![
        show::text(lock.name.as_str()),
        state(lock) + show::kind(lock.kind),
        first.map_or_else(none, |holder| format!("{}{others}", show::text(&holder.label))),
        first.map_or_else(none, |holder| holder.token.0.to_string()),
        first.map_or_else(none, |holder| show::age(holder.since)),
        first.map_or_else(none, |holder| show::since(holder.since)),
        first.map_or_else(none, |holder| show::duration(holder.remaining)),
        lock.queue_length.to_string(),
        lock.data.as_deref().map_or_else(String::new, show::data),
    ]
}

fn state(lock: &LockInfo) -> String {
    match (lock.holder_count, lock.delay_remaining) {
        (0, None) => "free".into(),
        (0, Some(left)) => format!("closed for {}", show::duration(left)),
        _ if lock.holders.iter().any(|holder| holder.revoked_reason.is_some()) => "revoked".into(),
        _ => show::mode(lock.mode),
    }
}
