//! `session close`.

use clap::Args;

use super::{
    super::{Cluster, Exit, Failure},
    Which,
};

/// Closes a session: releases all that it holds, and cancels its waits. Exit code 11 if it had expired before.
#[derive(Args, Debug)]
pub(super) struct Close {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    cluster: Cluster,
}

impl Close {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        self.cluster.client()?.attach(self.which.session).close().await?;
        Ok(Exit::Success)
    }
}
