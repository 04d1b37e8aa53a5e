//! `session close`.

use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::super::{Cluster, Exit, Failure, output::print, show};
use crate::{
    client::{Client, Error},
    machine::SessionId,
};

/// Sessions that are being closed at one time.
const AT_ONCE: usize = 64;

/// Closes a session: releases all that it holds, and cancels its waits. Exit code 11 if it had expired before.
///
/// With --label it closes all sessions that have this label, whoever opened them, and says how many: for a client that is known to be
/// dead. One that is opened meanwhile may be left.
#[derive(Args, Debug)]
pub(super) struct Close {
    /// The session.
    #[arg(env = "LOCKKEEPER_SESSION", value_name = "ID", required_unless_present = "label")]
    session: Option<SessionId>,
    /// Instead of one session: all that have this label, as `lockkeeper sessions` shows it.
    #[arg(long)]
    label: Option<String>,
    #[command(flatten)]
    cluster: Cluster,
}

impl Close {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let client = self.cluster.client()?;
        if let Some(label) = self.label {
            let closed = close_all(&client, &label).await?;
            print(&format!("closed {}\n", show::count(closed, "session", "sessions")))?;
        } else if let Some(session) = self.session {
            client.attach(session).close().await?;
        }
        Ok(Exit::Success)
    }
}

/// How many were closed: all that were there when it began, and had not ended before their turn.
async fn close_all(client: &Client, label: &str) -> Result<usize, Failure> {
    let mut sessions: Vec<SessionId> = Vec::new();
    let mut page_token = String::new();
    loop {
        let page = client.sessions(&page_token).await?;
        let labelled = page.sessions.iter().filter(|session| session.label == label);
        sessions.extend(labelled.filter_map(|session| session.session_id.parse::<SessionId>().ok()));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let close = async |session| match client.attach(session).close().await {
        Ok(()) => Ok(1),
        Err(Error::Lost(_)) => Ok(0),
        Err(error) => Err(error),
    };
    let closed = stream::iter(sessions).map(close).buffer_unordered(AT_ONCE);
    Ok(closed.try_fold(0, |sum, one| std::future::ready(Ok(sum + one))).await?)
}
