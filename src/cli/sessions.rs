//! `sessions`, also `session list`: lists the sessions.

use std::time::Duration;

use clap::Args;

use super::{
    Cluster, Exit, Failure,
    output::{Output, Pages},
    show, views,
};
use crate::{machine::WallTime, proto::v1::SessionInfo};

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
        let header = ["SESSION", "LABEL", "TTL", "REMAINING", "OPENED", "GRANTS", "WAITS", "BYTES", "ADDRESS"];
        let mut pages = Pages::new(self.output.output, &header);
        let mut page_token = String::new();
        loop {
            let page = client.sessions(&page_token).await?;
            pages.write(page.sessions, row, views::Session::from)?;
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        pages.end()?;
        Ok(Exit::Success)
    }
}

fn row(session: &SessionInfo) -> Vec<String> {
    vec![
        show::text(&session.session_id),
        show::cell(&session.label),
        show::duration(Duration::from_millis(session.ttl_ms.into())),
        show::duration(Duration::from_millis(session.remaining_ms)),
        show::since(WallTime(session.opened_unix_ms)),
        session.grants.to_string(),
        session.waits.to_string(),
        session.bytes.to_string(),
        match session.address.as_str() {
            "" => "-".into(),
            address => show::text(address),
        },
    ]
}
