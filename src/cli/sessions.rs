//! `sessions`, also `session list`: lists the sessions.

use clap::Args;

use super::{
    Cluster, Exit, Failure,
    output::{Output, Pages},
    show, views,
};
use crate::client::SessionInfo;

/// Lists the sessions.
#[derive(Args, Debug)]
pub(super) struct Sessions {
    /// Read the table of the node that is asked, even if it lags or is cut off
    #[arg(long)]
    stale: bool,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    output: Output,
}

impl Sessions {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let client = self.cluster.reader(self.stale)?;
        let header = ["SESSION", "LABEL", "TTL", "REMAINING", "OPENED", "GRANTS", "WAITS", "BYTES", "ADDRESS", "OWNER"];
        let mut pages = Pages::new(self.output.output, &header);
        let mut page_token = String::new();
        loop {
            let page = client.sessions(&page_token).await?;
            pages.write(page.sessions, row, views::Session::from)?;
            match page.next_page_token {
                Some(next) => page_token = next,
                None => break,
            }
        }
        pages.end()?;
        Ok(Exit::Success)
    }
}

fn row(session: &SessionInfo) -> Vec<String> {
    vec![
        session.session_id.to_string(),
        show::cell(&session.label),
        show::duration(session.ttl),
        show::duration(session.remaining),
        show::since(session.opened),
        session.grants.to_string(),
        session.waits.to_string(),
        session.bytes.to_string(),
        session.address.map_or("-".into(), |address| address.to_string()),
        session.owner.as_deref().map_or("-".into(), show::cell),
    ]
}
