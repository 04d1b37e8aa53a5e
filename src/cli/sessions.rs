//! `sessions`: who is there.

use clap::Args;

use super::{
    Cluster, Exit, Failure,
    output::{Array, Format, Output, Table, print},
    show, views,
};

/// Lists the sessions.
#[derive(Args, Debug)]
pub(super) struct Sessions {
    /// Answer from the table of the node that is asked, even if it is behind or cut off.
    #[arg(long)]
    stale: bool,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    output: Output,
}

impl Sessions {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let client = self.cluster.client()?;
        let mut table = Table::new(&["SESSION", "LABEL", "TTL", "REMAINING", "OPENED", "GRANTS", "WAITS"]);
        let mut array = Array::default();
        let mut page_token = String::new();
        loop {
            let page = client.sessions(&page_token, self.stale).await?;
            match self.output.output {
                Format::Text => {
                    for session in &page.sessions {
                        table.row(vec![
                            show::text(&session.session_id),
                            show::cell(&session.label),
                            show::duration(session.ttl_ms.into()),
                            show::duration(session.remaining_ms),
                            show::since(session.opened_unix_ms),
                            session.grants.to_string(),
                            session.waits.to_string(),
                        ]);
                    }
                    print(&table.take())?;
                }
                Format::Json => array.push(&page.sessions.into_iter().map(views::Session::from).collect::<Vec<_>>())?,
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        if self.output.output == Format::Json {
            array.end()?;
        }
        Ok(Exit::Success)
    }
}
