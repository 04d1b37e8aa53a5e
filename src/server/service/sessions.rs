//! How a node executes requests about sessions.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{
    local::{Local, Serve, page_size},
    patience::PATIENCE,
};
use crate::{
    api::{Caller, Error, requests::*},
    wire::Form,
};
use lockkeeper_machine::{Attachment, Command, Renewal, Reply, SessionId};
use lockkeeper_raft::NoReply;
use lockkeeper_table::Applied;

/// Maximum number of sessions in one page of a list.
const PAGE_MAX: usize = 1000;
/// Interval at which a close checks whether everything that the session held is free.
const LOOK: Duration = Duration::from_millis(5);

impl Serve for OpenSession {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<SessionOpened>, Error> {
        let Self { session, ttl, label } = self;
        let session = session.unwrap_or_else(|| SessionId(node.random.bits()));
        let reply = node
            .apply(Command::Open { session, ttl, label, address: caller.remote, owner: caller.identity.clone() })
            .await?;
        let Reply::Opened(ttl) = reply else { return Err(Error::unexpected(reply)) };
        Ok(Form::Typed(SessionOpened { session, ttl }))
    }
}

impl Serve for RenewSession {
    async fn serve(self, node: &Local, _caller: &Caller) -> Result<Form<SessionRenewed>, Error> {
        match node.replica.renew(self.session, PATIENCE).await.map_err(Error::no_reply)? {
            Renewal::Renewed { ttl, revoked, more } => {
                Ok(Form::Typed(SessionRenewed { ttl, revoked, more_revoked: more }))
            }
            Renewal::Ended(end) => Err(Error::session_ended(end)),
        }
    }
}

impl Serve for AttachSession {
    async fn serve(self, node: &Local, _caller: &Caller) -> Result<Form<Attachment>, Error> {
        let reply = node.apply(Command::Attach { session: self.session }).await?;
        let Reply::Attached(attachment) = reply else { return Err(Error::unexpected(reply)) };
        Ok(Form::Typed(attachment))
    }
}

impl Serve for SetSessionOwner {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<SessionOwnerSet>, Error> {
        let Some(owner) = caller.identity.clone() else { return Err(Error::not_owner(None)) };
        let reply = node.apply(Command::SetOwner { session: self.session, owner }).await?;
        let Reply::OwnerSet = reply else { return Err(Error::unexpected(reply)) };
        Ok(Form::Typed(SessionOwnerSet))
    }
}

impl Serve for CloseSession {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<SessionClosed>, Error> {
        let Self { session, reason } = self;
        // The check lets an administrator pass, so the log says who it was.
        let for_other = node.owner(session).is_some_and(|owner| owner.is_some() && owner != caller.identity);
        let by = caller.identity.clone().filter(|_| for_other);

        let reply = node.apply(Command::Close { session, by, reason: reason.clone() }).await?;
        let Reply::Closed = reply else { return Err(Error::unexpected(reply)) };

        if let Some(reason) = reason {
            let from = caller.shown();
            let reason = reason.as_str();
            tracing::info!(%session, %from, reason, "an operator closed a session");
        }

        // The session's locks are freed over several entries of the log.
        until_cleared_away(node, session).await?;
        Ok(Form::Typed(SessionClosed))
    }
}

/// Waits until everything that a closed session held is free. One entry of the log ends the session for everybody and frees a bounded
/// number of its locks; the next entries free the rest. A client that closes a session, and hands its locks to others, counts on all of
/// them.
///
/// Fails if that takes too long, or if this node no longer leads. The close can then be repeated, and waits for the rest.
async fn until_cleared_away(node: &Local, session: SessionId) -> Result<(), Error> {
    let is_cleared = || !node.replica.table().read(|applied| applied.machine.is_clearing_away(session));

    let cleared = async {
        while !is_cleared() {
            if !node.replica.leads() {
                return Err(Error::no_reply(NoReply::Unknown));
            }
            sleep(LOOK).await;
        }
        Ok(())
    };
    timeout(PATIENCE, cleared).await.unwrap_or(Err(Error::no_reply(NoReply::Unknown)))
}

impl Serve for ListSessions {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<ListedSessions>, Error> {
        let size = page_size(self.page_size, PAGE_MAX);
        if node.access.has_policy() && !node.access.administers(caller) {
            return own_sessions(node, caller, &self, size).await;
        }

        let look = |applied: &Applied| {
            let sessions: Vec<_> = applied.machine.sessions(self.after).take(size).collect();
            let more_after = sessions.last().filter(|_| sessions.len() == size).map(|last| last.session);
            ListedSessions { sessions, more_after, index: applied.index() }
        };
        node.read(self.stale, look).await.map(Form::Typed)
    }
}

/// Lists only the caller's sessions, from a clone of the table: they may be few among a million.
async fn own_sessions(
    node: &Local,
    caller: &Caller,
    request: &ListSessions,
    size: usize,
) -> Result<Form<ListedSessions>, Error> {
    let (machine, index) = node.frozen(request.stale).await?;
    let own = machine.sessions(request.after).filter(|session| session.owner == caller.identity);
    let sessions: Vec<_> = own.take(size).collect();
    let more_after = sessions.last().filter(|_| sessions.len() == size).map(|last| last.session);
    Ok(Form::Typed(ListedSessions { sessions, more_after, index }))
}
