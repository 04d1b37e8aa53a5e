//! `session renew`.

use clap::Args;

use super::{
    super::{
        Cluster, Exit, Failure,
        output::{Format, Output, print, print_document},
        show, views,
    },
    Which,
};
use crate::client::Renewal;

/// Renews a session once: it lives for another TTL.
#[derive(Args, Debug)]
pub(super) struct Renew {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    output: Output,
}

impl Renew {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let session = self.cluster.client()?.attach(self.which.session);
        let renewal = session.renew().await?;
        match self.output.output {
            Format::Text => print(&text(&renewal))?,
            Format::Json => print_document(&views::Renewal::new(&session, renewal))?,
        }
        Ok(Exit::Success)
    }
}

fn text(renewal: &Renewal) -> String {
    let left = show::duration(show::millis(renewal.remaining));
    let mut text = format!("renewed: to be trusted for another {left}\n");
    for revoked in &renewal.revoked {
        let (reason, left) = (show::text(&revoked.reason), show::duration(revoked.remaining_ms));
        text += &format!("revoked: token {}, by an operator: {reason}; release it within {left}\n", revoked.token);
    }
    text
}
