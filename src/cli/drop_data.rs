//! `lockkeeper drop-data` drops the data kept on unheld locks.

use clap::Args;
use serde::Serialize;

use super::{
    ClusterArguments, Exit, Failure,
    output::{Format, Output, print, print_document},
    paging::each_page,
    show,
};
use crate::client::{Client, LockInfo};

/// Drops the data that were kept on unheld locks. Without --yes it only counts these locks.
#[derive(Args, Debug)]
pub(super) struct DropKeptData {
    /// Prefix of the lock names; '' for all locks
    prefix: String,
    /// Drop the data rather than count the locks
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct DropDataReport {
    /// Unheld locks with data; with `dropped`, the locks whose data were dropped.
    locks: u64,
    dropped: bool,
}

impl DropKeptData {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let client = self.cluster.client()?;
        let locks =
            if self.yes { drop_all(&client, &self.prefix).await? } else { count(&client, &self.prefix).await? };
        match (self.output.output, self.yes) {
            (Format::Json, dropped) => print_document(&DropDataReport { locks, dropped })?,
            (Format::Text, true) => {
                print(&format!("dropped the data of {}\n", show::count(locks, "lock", "locks")))?;
            }
            (Format::Text, false) => print(&counted(locks))?,
        }
        Ok(Exit::Success)
    }
}

fn counted(locks: u64) -> String {
    let what = match locks {
        1 => "1 lock has data, and nobody holds it".to_owned(),
        locks => format!("{locks} locks have data, and nobody holds them"),
    };
    format!("{what}: --yes drops the data\n")
}

async fn drop_all(client: &Client, prefix: &str) -> Result<u64, Failure> {
    let mut dropped = 0;
    let call = async |after: &str| client.drop_data(prefix, after).await;
    each_page(call, |part| {
        dropped += part.dropped;
        Ok(part.more_after)
    })
    .await?;
    Ok(dropped)
}

async fn count(client: &Client, prefix: &str) -> Result<u64, Failure> {
    let kept = |lock: &&LockInfo| lock.holder_count == 0 && lock.data.is_some();
    let mut locks = 0;
    let read = async |token: &str| client.list(prefix, token).await;
    each_page(read, |page| {
        locks += page.locks.iter().filter(kept).count() as u64;
        Ok(page.next_page_token)
    })
    .await?;
    Ok(locks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lock_is_no_plural() {
        assert_eq!(counted(1), "1 lock has data, and nobody holds it: --yes drops the data\n");
        assert_eq!(counted(2), "2 locks have data, and nobody holds them: --yes drops the data\n");
    }
}
