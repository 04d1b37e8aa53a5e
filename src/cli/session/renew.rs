//! `session renew`.

use std::time::Duration;

use clap::Args;

use super::{
    super::{
        ClusterArguments, Exit, Failure,
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
    cluster: ClusterArguments,
    #[command(flatten)]
    output: Output,
}

impl Renew {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let session = self.cluster.client()?.attach(self.which.session);
        let renewal = session.renew().await?;
        match self.output.output {
            Format::Text => print(&text(&renewal))?,
            Format::Json => print_document(&views::RenewalJson::new(&session, renewal))?,
        }
        Ok(Exit::Success)
    }
}

fn text(renewal: &Renewal) -> String {
    let left = show::duration(renewal.remaining);
    let mut text = format!("renewed: it may be trusted for another {left}\n");

    for revoked in &renewal.revoked {
        let token = revoked.token.0;
        let reason = show::text(&revoked.reason);
        let what_next = match revoked.remaining {
            Duration::ZERO => "its locks are open to others: stop, and release it".to_owned(),
            left => format!("release it within {}", show::duration(left)),
        };
        text += &format!("revoked: token {token}, by an operator: {reason}; {what_next}\n");
    }

    if renewal.more_revoked {
        text += "more grants are revoked: release these, then renew again to see the others\n";
    }
    text
}
