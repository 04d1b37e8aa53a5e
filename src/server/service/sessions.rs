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
use lockkeeper_machine::{Attachment, Command, Identity, Renewal, Reply, SessionId, SessionView, Version};
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
        // The check lets an administrator pass, and everybody for a session of an anonymous caller, so the trail says who it was. Before
        // there is a trail, members may not know the field.
        let is_named = node.replica.versions().cluster() >= Version::AUDITED;
        let for_other = node.owner(session).is_some_and(|owner| owner != caller.identity);
        let by = caller.identity.clone().filter(|_| is_named && for_other);

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
            let sessions: Vec<_> = applied.machine.sessions_up_to(self.after, self.last).take(size).collect();
            let more_after = sessions.last().filter(|_| sessions.len() == size).map(|last| last.session);
            ListedSessions { sessions, more_after, index: applied.index() }
        };
        node.read(self.stale, look).await.map(Form::Typed)
    }
}

/// Maximum number of sessions that one page visits: they share a runtime with renewals. It takes some milliseconds.
const VISITED_MAX: usize = 20_000;

/// Lists only the caller's sessions, from a clone of the table. They may be few among a million, so a page may have none and be followed by
/// others.
async fn own_sessions(
    node: &Local,
    caller: &Caller,
    request: &ListSessions,
    size: usize,
) -> Result<Form<ListedSessions>, Error> {
    let (machine, index) = node.frozen(request.stale).await?;
    let visited = || machine.sessions_up_to(request.after, request.last);
    // The view of a single session needs no turn, however many there are.
    let _turn = node.long_reads.turn_for(caller, visited().take(node.long_reads.visits_per_turn() + 1).count()).await?;

    let (sessions, more_after) = page_of_own(visited().take(VISITED_MAX), VISITED_MAX, caller.identity.as_ref(), size);
    Ok(Form::Typed(ListedSessions { sessions, more_after, index }))
}

/// Takes those of this owner, up to `size` of them. Returns also after which session the next page begins, unless this is the last one:
/// fewer than `visited_max` sessions are all that there are.
fn page_of_own(
    all: impl Iterator<Item = SessionView>,
    visited_max: usize,
    owner: Option<&Identity>,
    size: usize,
) -> (Vec<SessionView>, Option<SessionId>) {
    let mut own = Vec::new();

    for (visited, session) in (1..).zip(all) {
        let id = session.session;
        if session.owner.as_ref() == owner {
            own.push(session);
        }
        if own.len() == size || visited == visited_max {
            return (own, Some(id));
        }
    }
    (own, None)
}

#[cfg(test)]
mod tests {
    use lockkeeper_machine::{Label, Ttl, WallTime};

    use super::*;

    fn session(id: u128, owner: &str) -> SessionView {
        SessionView {
            session: SessionId(id),
            label: Label::default(),
            ttl: Ttl::from_millis(10_000).expect("a TTL"),
            remaining_ms: 10_000,
            opened: WallTime::default(),
            grants: 0,
            waits: 0,
            address: None,
            owner: Identity::new(owner).ok(),
            bytes: 0,
        }
    }

    /// Pages visit few sessions, whoever they belong to, and none is left out.
    #[test]
    fn pages_of_a_few_own_sessions_among_many() {
        let all: Vec<_> = (1..=100).map(|id| session(id, if id % 30 == 0 { "shop" } else { "others" })).collect();
        let shop = Identity::new("shop").expect("an identity");
        let mut after = None;
        let mut seen = Vec::new();
        let mut pages = 0;

        loop {
            let rest = all.iter().filter(|session| Some(session.session) > after).take(10).cloned();
            let (own, more_after) = page_of_own(rest, 10, Some(&shop), 2);
            seen.extend(own.iter().map(|session| session.session.0));
            pages += 1;
            if more_after.is_none() {
                break;
            }
            after = more_after;
        }
        assert_eq!((seen, pages), (vec![30, 60, 90], 11));

        let (own, more_after) = page_of_own(all.into_iter().take(60), 60, Some(&shop), 2);
        assert_eq!((own.len(), more_after), (2, Some(SessionId(60))));
    }
}
