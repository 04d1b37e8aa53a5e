//! `lockkeeper release` releases a grant.

use clap::Args;

use super::{ClusterArguments, Exit, Failure, session};
use crate::machine::Token;

/// Releases a grant of `acquire`. Exit code 11: it was lost or released before.
#[derive(Args, Debug)]
pub(super) struct Release {
    #[command(flatten)]
    within: session::In,
    /// The token, as `acquire` printed it
    #[arg(value_parser = super::arguments::token)]
    token: Token,
    #[command(flatten)]
    cluster: ClusterArguments,
}

impl Release {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let session = self.cluster.client()?.attach(self.within.session);
        session.release(self.token).await.map_err(Failure::for_holder)?;
        Ok(Exit::Success)
    }
}
