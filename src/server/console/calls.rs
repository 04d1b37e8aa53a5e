//! The calls of the page. Each is answered within a page of its list: the page asks for the rest when somebody wants to see it.

use std::time::Duration;

use axum::response::Response;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{
    Console, OfLeader, json,
    shown::{
        ForcedShown, FoundShown, LevelShown, LockShown, MemberShown, Node, SessionPageShown, SessionsShown, Status,
    },
};
use crate::{
    api::{
        Caller, Error,
        requests::{After, BrowseLocks, GetLock, ListSessions, SearchLocks, ShowSession},
    },
    wire::Form,
};
use lockkeeper_machine::{ForceRelease, LockName, Page, Reason, SessionId, Ticket, Token};
use lockkeeper_policy::{Right, What};
use lockkeeper_proto::v1::{Role, StatusResponse};

/// Holders and waiters, or sessions, in a page.
const PAGE: usize = 100;
/// Time that the leader has to tell of the members.
const LEADER_TIMEOUT: Duration = Duration::from_secs(1);
/// For so long what it told is shown to other pages too.
const LEADER_FRESH: Duration = Duration::from_millis(400);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelAsked {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    after_lock: Option<String>,
    #[serde(default)]
    after_folder: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchAsked {
    #[serde(default)]
    prefix: String,
    text: String,
    #[serde(default)]
    after: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LockAsked {
    name: String,
    #[serde(default)]
    holders_after: Option<String>,
    #[serde(default)]
    waiters_after: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionsAsked {
    #[serde(default)]
    after: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionAsked {
    id: String,
    #[serde(default)]
    after: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForceAsked {
    name: String,
    token: String,
    reason: String,
    /// Opens the lock at once: its holder is known to be dead.
    now: bool,
}

/// Whether the call changes something.
pub(super) fn changes(call: &str) -> bool {
    call == "force-release"
}

/// Answers a call.
pub(super) async fn answer(console: &Console, caller: &Caller, call: &str, body: &[u8]) -> Result<Response, Error> {
    match call {
        "status" => {
            let Nothing {} = read(body)?;
            Ok(json(&status(console, caller).await?))
        }
        "level" => Ok(json(&level(console, caller, read(body)?)?)),
        "search" => Ok(json(&search(console, caller, read(body)?)?)),
        "lock" => Ok(json(&lock(console, caller, read(body)?).await?)),
        "sessions" => Ok(json(&sessions(console, caller, read(body)?).await?)),
        "session" => Ok(json(&session(console, caller, &read(body)?)?)),
        "force-release" => Ok(json(&force_release(console, caller, read(body)?).await?)),
        other => {
            Err(Error::invalid("call", format!("{other:?} is unknown: reload the page, this node has another version")))
        }
    }
}

pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| Error::invalid("body", error))
}

pub(super) fn name(field: &str, name: &str) -> Result<LockName, Error> {
    LockName::new(name).map_err(Error::invalid_value(field))
}

/// A token or a ticket; 0: none was given.
fn number(field: &str, text: Option<&str>) -> Result<u64, Error> {
    text.map_or(Ok(0), |text| text.parse().map_err(|_| Error::invalid(field, "is no number")))
}

fn session_id(field: &str, text: &str) -> Result<SessionId, Error> {
    text.parse().map_err(Error::invalid_value(field))
}

async fn status(console: &Console, caller: &Caller) -> Result<Status, Error> {
    console.service.access().admit(caller)?;
    let own = console.cluster.condition(false).await?;
    let of_leader = if own.role() == Role::Leader { None } else { of_leader(console).await };
    let (by, by_leader) = match &of_leader {
        Some(status) => (status, true),
        None => (&own, own.role() == Role::Leader),
    };
    let members = by.members.iter().map(|member| MemberShown::new(member, by, by_leader)).collect();
    let you = caller.identity.as_ref().map(ToString::to_string);
    Ok(Status { now: console.clock.wall_ms(), you, members, by_leader, node: Node::from(own) })
}

/// The leader's condition, asked for once for all pages that want it at the same time.
async fn of_leader(console: &Console) -> Option<StatusResponse> {
    let mut known = console.leader.lock().await;
    match &*known {
        Some(known) if known.asked.elapsed() < LEADER_FRESH => known.status.clone(),
        Some(_) | None => {
            let status = console.service.leader_status(LEADER_TIMEOUT).await;
            *known = Some(OfLeader { asked: Instant::now(), status: status.clone() });
            status
        }
    }
}

fn level(console: &Console, caller: &Caller, asked: LevelAsked) -> Result<LevelShown, Error> {
    let LevelAsked { prefix, after_lock, after_folder } = asked;
    let after = match (after_lock, after_folder) {
        (_, Some(folder)) => Some(After::Folder(folder)),
        (Some(lock), None) => Some(After::Lock(name("after_lock", &lock)?)),
        (None, None) => None,
    };
    let level = console.service.browse(caller, BrowseLocks { prefix, after, size: PAGE })?;
    let children = level.children.into_iter().map(Into::into).collect();
    Ok(LevelShown { now: console.clock.wall_ms(), index: level.index, children, more: level.more })
}

fn search(console: &Console, caller: &Caller, asked: SearchAsked) -> Result<FoundShown, Error> {
    let SearchAsked { prefix, text, after } = asked;
    let after = after.map(|after| name("after", &after)).transpose()?;
    let found = console.service.browse(caller, SearchLocks { prefix, text, after, size: PAGE })?;
    Ok(FoundShown {
        now: console.clock.wall_ms(),
        index: found.index,
        locks: found.locks.into_iter().map(Into::into).collect(),
        looked: found.looked,
        more_after: found.more_after.map(|name| name.to_string()),
    })
}

async fn lock(console: &Console, caller: &Caller, asked: LockAsked) -> Result<LockShown, Error> {
    let name = name("name", &asked.name)?;
    let page = Page {
        size: PAGE,
        holders_after: Token(number("holders_after", asked.holders_after.as_deref())?),
        waiters_after: Ticket(number("waiters_after", asked.waiters_after.as_deref())?),
    };
    let may_force = console.service.access().allows(caller, Right::ForceRelease, What::Name(name.as_str()));
    let found = console.service.call(caller, Form::Typed(GetLock { name, page, stale: true })).await?.typed()?;
    Ok(LockShown { now: console.clock.wall_ms(), index: found.index, lock: found.lock.into(), may_force })
}

async fn sessions(console: &Console, caller: &Caller, asked: SessionsAsked) -> Result<SessionsShown, Error> {
    let after = asked.after.map(|after| session_id("after", &after)).transpose()?;
    let request = ListSessions { after, page_size: PAGE, stale: true };
    let page = console.service.call(caller, Form::Typed(request)).await?.typed()?;
    Ok(SessionsShown {
        now: console.clock.wall_ms(),
        index: page.index,
        sessions: page.sessions.into_iter().map(Into::into).collect(),
        more_after: page.more_after.map(|id| id.to_string()),
    })
}

fn session(console: &Console, caller: &Caller, asked: &SessionAsked) -> Result<SessionPageShown, Error> {
    let after = Token(number("after", asked.after.as_deref())?);
    let request = ShowSession { session: session_id("id", &asked.id)?, after };
    let now = console.clock.wall_ms();
    Ok(match console.service.browse(caller, request)? {
        None => {
            let (grants, waits) = Default::default();
            SessionPageShown { now, index: 0, session: None, grants, more: false, waits }
        }
        Some(shown) => SessionPageShown {
            now,
            index: shown.index,
            session: Some(shown.view.into()),
            grants: shown.grants.into_iter().map(Into::into).collect(),
            more: shown.more,
            waits: shown.waits.into_iter().map(Into::into).collect(),
        },
    })
}

async fn force_release(console: &Console, caller: &Caller, asked: ForceAsked) -> Result<ForcedShown, Error> {
    let ForceAsked { name: lock, token, reason, now } = asked;
    let request = ForceRelease {
        name: name("name", &lock)?,
        token: Some(Token(number("token", Some(&token))?)),
        after: Token(0),
        up_to: None,
        reason: Reason::new(&reason).map_err(Error::invalid_value("reason"))?,
        now,
        by: None,
    };
    let forced = console.service.call(caller, Form::Typed(request)).await?.typed()?;
    let more = forced.more_up_to.is_some();
    Ok(ForcedShown { forced: forced.forced.into_iter().map(Into::into).collect(), more })
}
