//! `sessions`, also `session list`: lists the sessions.

use clap::Args;

use super::{
    ClusterArguments, Exit, Failure,
    output::{Pages, TableOutput},
    paging::each_page,
    show,
    table::TextColumn,
};
use crate::client::SessionInfo;

/// Lists the sessions.
#[derive(Args, Debug)]
pub(super) struct Sessions {
    /// Read the table of the node that is asked, even if it lags or is cut off
    #[arg(long)]
    stale: bool,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: TableOutput,
}

impl Sessions {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let client = self.cluster.reader(self.stale)?;
        let mut pages = Pages::new(self.output.printed(), &COLUMNS);

        let read = async |token: &str| client.sessions(token).await;
        each_page(read, |page| {
            pages.write(&page.sessions, row, |session| session.session_id.to_string())?;
            Ok(page.next_page_token)
        })
        .await?;

        pages.end()?;
        Ok(Exit::Success)
    }
}

const COLUMNS: [TextColumn; 11] = [
    TextColumn::exact("SESSION"),
    TextColumn::text("LABEL"),
    TextColumn::text("OWNER"),
    TextColumn::exact("AGE"),
    TextColumn::exact("OPENED").if_wide(),
    TextColumn::exact("TTL").if_wide(),
    TextColumn::exact("REMAINING"),
    TextColumn::exact("GRANTS"),
    TextColumn::exact("WAITS").if_wide(),
    TextColumn::exact("BYTES").if_wide(),
    TextColumn::exact("ADDRESS").if_wide(),
];

fn row(session: &SessionInfo) -> Vec<String> {
    vec![
        session.session_id.to_string(),
        show::text(&session.label),
        session.owner.as_deref().map_or("-".into(), show::text),
        show::age(session.opened),
        show::since(session.opened),
        show::duration(session.ttl),
        show::duration(session.remaining),
        session.grants.to_string(),
        session.waits.to_string(),
        session.bytes.to_string(),
        session.address.map_or("-".into(), |address| address.to_string()),
    ]
}
