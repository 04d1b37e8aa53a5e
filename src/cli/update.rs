//! `lockkeeper update` sets the data on a held lock.

use clap::Args;

use super::{ClusterArguments, Exit, Failure, session};
use crate::{client::NewData, machine::Token};

/// Sets or removes the data on a held lock. Exit code 11: the grant was lost or released before.
#[derive(Args, Debug)]
pub(super) struct UpdateLockData {
    #[command(flatten)]
    within: session::In,
    /// The token, as `acquire` printed it
    #[arg(value_parser = super::arguments::token)]
    token: Token,
    /// The lock
    name: String,
    #[command(flatten)]
    change: DataArgument,
    /// Keep the data on the lock after release
    #[arg(long, conflicts_with = "remove")]
    keep_data: bool,
    #[command(flatten)]
    cluster: ClusterArguments,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct DataArgument {
    /// The new data
    #[arg(long)]
    data: Option<String>,
    /// Remove the data
    #[arg(long)]
    remove: bool,
}

impl UpdateLockData {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let session = self.cluster.client()?.attach(self.within.session);
        let data = match self.change.data.as_deref().map(str::as_bytes) {
            Some(data) if self.keep_data => NewData::Kept(data),
            Some(data) => NewData::Held(data),
            None => NewData::None,
        };
        let updated = session.update(self.token, &self.name, data).await;
        updated.map_err(Failure::for_holder)?;
        Ok(Exit::Success)
    }
}
