//! `session close`.

use std::future::ready;

use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    super::{ClusterArguments, Exit, Failure, output::print, paging::each_page, show},
    addresses::{OwnSessions, addresses},
};
use crate::{
    client::{Client, Error, SessionInfo},
    machine::SessionId,
};

/// Sessions that are closed concurrently.
const AT_ONCE: usize = 64;

/// Closes a session: releases all its grants and cancels its waits. Exit code 11: it had expired before.
///
/// With --label or --address it closes all sessions with this label, or opened from this address, by whichever client they were opened, and
/// prints their number: for clients that are known to be dead. With both options it closes the sessions for which both hold. A session
/// that is opened meanwhile may remain. A session that is renewed from elsewhere still counts for the address from which it was opened.
#[derive(Args, Debug)]
pub(super) struct Close {
    /// The session
    #[arg(env = "LOCKKEEPER_SESSION", value_name = "ID", required_unless_present_any = ["label", "address"])]
    session: Option<SessionId>,
    /// Close all sessions with this label, as `lockkeeper sessions` shows it, instead of one session
    #[arg(long)]
    label: Option<String>,
    /// Close all sessions opened from this IP address, network or IP:PORT, as `lockkeeper sessions -o wide` shows
    /// it, instead of one session
    #[arg(long, value_name = "IP[/PREFIX]|IP:PORT", value_parser = addresses)]
    address: Option<OwnSessions>,
    #[command(flatten)]
    cluster: ClusterArguments,
}

impl Close {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let client = self.cluster.client()?;
        if self.label.is_some() || self.address.is_some() {
            let closed = self.close_all(&client).await?;
            print(&format!("closed {}\n", show::count(closed, "session", "sessions")))?;
        } else if let Some(session) = self.session {
            client.attach(session).close().await?;
        }
        Ok(Exit::Success)
    }

    /// Closes all sessions that match. Returns their number, without the ones that ended before. Sessions that are opened during the call
    /// are not closed.
    async fn close_all(&self, client: &Client) -> Result<u64, Failure> {
        let mut sessions: Vec<SessionId> = Vec::new();
        let read = async |token: &str| client.sessions(token).await;
        each_page(read, |page| {
            let concerned = page.sessions.iter().filter(|session| self.concerns(session));
            sessions.extend(concerned.map(|session| session.session_id));
            Ok(page.next_page_token)
        })
        .await?;

        let reason = self.reason();
        let close = async |session| match client.close_session(session, &reason).await {
            Ok(()) => Ok(1),
            Err(Error::Lost(_)) => Ok(0),
            Err(error) => Err(error),
        };
        let closed = stream::iter(sessions).map(close).buffer_unordered(AT_ONCE);
        Ok(closed.try_fold(0, |sum, one| ready(Ok(sum + one))).await?)
    }

    fn concerns(&self, session: &SessionInfo) -> bool {
        self.label.as_ref().is_none_or(|label| session.label == *label)
            && self.address.is_none_or(|addresses| session.address.is_some_and(|address| addresses.contains(address)))
    }

    /// The reason, for the logs of the nodes.
    fn reason(&self) -> String {
        let label = self.label.as_ref().map(|label| format!("all sessions with the label {}", show::cell(label)));
        let address = self.address.map(|addresses| format!("all sessions from {addresses}"));
        [label, address].into_iter().flatten().collect::<Vec<_>>().join(", and of these ")
    }
}
