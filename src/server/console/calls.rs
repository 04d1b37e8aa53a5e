//! The calls of the console's page. Each answer is one part of its list: the page asks for the next part when the user wants to see it.

use std::time::Duration;

use axum::response::Response;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{
    Console, LeaderAnswer,
    history::SAMPLE_INTERVAL,
    json,
    shown::{
        DelayLiftedShown, ForcedShown, FoundShown, HistoryShown, HolderSession, LevelShown, LockShown, MemberShown,
        NodeShown, PastChangesShown, SessionClosedShown, SessionPageShown, SessionsShown, StatusShown,
        WaiterRemovedShown,
    },
};
use crate::{
    api::{
        Caller, Error,
        requests::{
            After, BrowseLocks, CloseSession, LiftDelay, ListSessions, RemoveWaiter, SearchLocks, ShowLock,
            ShowSession, WatchLocks,
        },
    },
    wire::Form,
};
use lockkeeper_machine::{ForceRelease, LockName, Page, Reason, SessionId, SessionView, Ticket, Token};
use lockkeeper_policy::{RequestSubject, Right};
use lockkeeper_proto::v1::{Role, StatusResponse};

/// Number of holders and waiters, or of sessions, in a page.
const PAGE: usize = 100;
/// Maximum number of past changes in one answer.
const PAST_MAX: usize = 300;
/// Time limit for the leader's answer about the members.
const LEADER_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for which the leader's answer is shown to other pages too.
const LEADER_FRESH: Duration = Duration::from_millis(400);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoArguments {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelQuery {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    after_lock: Option<String>,
    #[serde(default)]
    after_folder: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchQuery {
    #[serde(default)]
    prefix: String,
    text: String,
    #[serde(default)]
    after: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LockQuery {
    name: String,
    #[serde(default)]
    holders_after: Option<String>,
    #[serde(default)]
    waiters_after: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionsQuery {
    #[serde(default)]
    after: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionQuery {
    id: String,
    #[serde(default)]
    after: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForceQuery {
    name: String,
    token: String,
    reason: String,
    /// Whether to open the lock at once, because its holder is known to be dead.
    now: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CloseQuery {
    id: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoveQuery {
    name: String,
    ticket: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LiftQuery {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryQuery {
    /// Shows only what comes after the sample and the event with these numbers.
    #[serde(default)]
    sample: u64,
    #[serde(default)]
    event: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PastQuery {
    /// Shows only locks whose names begin with this.
    #[serde(default)]
    prefix: String,
    /// Shows only this lock.
    #[serde(default)]
    lock: Option<String>,
}

/// Whether the call changes something.
pub(super) fn changes(call: &str) -> bool {
    matches!(call, "force-release" | "close-session" | "remove-waiter" | "lift-delay")
}

/// Answers a call.
pub(super) async fn answer(console: &Console, caller: &Caller, call: &str, body: &[u8]) -> Result<Response, Error> {
    match call {
        "status" => {
            let NoArguments {} = read(body)?;
            Ok(json(&status(console, caller).await?))
        }
        "level" => Ok(json(&level(console, caller, read(body)?).await?)),
        "search" => Ok(json(&search(console, caller, read(body)?).await?)),
        "lock" => Ok(json(&lock(console, caller, &read(body)?).await?)),
        "sessions" => Ok(json(&sessions(console, caller, read(body)?).await?)),
        "session" => Ok(json(&session(console, caller, &read(body)?).await?)),
        "history" => Ok(json(&history(console, caller, &read(body)?)?)),
        "changes" => Ok(json(&past_changes(console, caller, read(body)?)?)),
        "force-release" => Ok(json(&force_release(console, caller, read(body)?).await?)),
        "close-session" => Ok(json(&close_session(console, caller, &read(body)?).await?)),
        "remove-waiter" => Ok(json(&remove_waiter(console, caller, &read(body)?).await?)),
        "lift-delay" => Ok(json(&lift_delay(console, caller, &read(body)?).await?)),
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

/// Reads a token or a ticket, or 0 if there is none.
fn number(field: &str, text: Option<&str>) -> Result<u64, Error> {
    text.map_or(Ok(0), |text| text.parse().map_err(|_| Error::invalid(field, "is not a number")))
}

fn session_id(field: &str, text: &str) -> Result<SessionId, Error> {
    text.parse().map_err(Error::invalid_value(field))
}

async fn status(console: &Console, caller: &Caller) -> Result<StatusShown, Error> {
    console.service.admit_call(caller)?;
    let own = console.cluster.condition(false).await?;
    let leads = own.role() == Role::Leader;
    let leader = if leads { None } else { ask_leader(console).await };

    // The leader knows more of the members than this node does.
    let best = leader.as_ref().unwrap_or(&own);
    let by_leader = leads || leader.is_some();
    let members = best.members.iter().map(|member| MemberShown::new(member, best, by_leader)).collect();
    let you = caller.identity.as_ref().map(ToString::to_string);
    Ok(StatusShown { now: console.clock.wall_ms(), you, members, by_leader, node: NodeShown::from(own) })
}

/// Returns the leader's condition. It is asked once for all pages that want it at the same time.
async fn ask_leader(console: &Console) -> Option<StatusResponse> {
    let mut last = console.leader.lock().await;
    match &*last {
        Some(last) if last.asked.elapsed() < LEADER_FRESH => last.status.clone(),
        Some(_) | None => {
            let status = console.service.leader_status(LEADER_TIMEOUT).await;
            *last = Some(LeaderAnswer { asked: Instant::now(), status: status.clone() });
            status
        }
    }
}

async fn level(console: &Console, caller: &Caller, asked: LevelQuery) -> Result<LevelShown, Error> {
    let LevelQuery { prefix, after_lock, after_folder } = asked;
    let after = match (after_lock, after_folder) {
        (_, Some(folder)) => Some(After::Folder(folder)),
        (Some(lock), None) => Some(After::Lock(name("after_lock", &lock)?)),
        (None, None) => None,
    };
    let level = console.service.browse(caller, BrowseLocks { prefix, after, size: PAGE }).await?;
    let children = level.children.into_iter().map(Into::into).collect();
    Ok(LevelShown { now: console.clock.wall_ms(), index: level.index, children, more: level.more })
}

async fn search(console: &Console, caller: &Caller, asked: SearchQuery) -> Result<FoundShown, Error> {
    let SearchQuery { prefix, text, after } = asked;
    let after = after.map(|after| name("after", &after)).transpose()?;
    let found = console.service.browse(caller, SearchLocks { prefix, text, after, size: PAGE }).await?;
    Ok(FoundShown {
        now: console.clock.wall_ms(),
        index: found.index,
        locks: found.locks.into_iter().map(Into::into).collect(),
        looked: found.looked,
        more_after: found.more_after.map(|name| name.to_string()),
    })
}

async fn lock(console: &Console, caller: &Caller, asked: &LockQuery) -> Result<LockShown, Error> {
    let name = name("name", &asked.name)?;
    let page = Page {
        size: PAGE,
        holders_after: Token(number("holders_after", asked.holders_after.as_deref())?),
        waiters_after: Ticket(number("waiters_after", asked.waiters_after.as_deref())?),
    };

    let may_force = console.service.access().allows(caller, Right::ForceRelease, RequestSubject::Name(name.as_str()));
    // Read this node's own table, so that the page also shows a lock while there is no leader.
    let known = console.service.browse(caller, ShowLock { name, page }).await?;

    let session = |view: &SessionView| HolderSession {
        ttl_ms: view.ttl.as_millis(),
        renewed_ms: u64::from(view.ttl.as_millis()).saturating_sub(view.remaining_ms),
        may_close: may_close(console, caller, view),
    };
    let sessions = known.sessions.iter().map(|view| view.as_ref().map(session)).collect();
    let lock = known.lock.into();
    Ok(LockShown { now: console.clock.wall_ms(), index: known.index, lock, sessions, may_force })
}

/// Whether the caller may close a session. The leader decides it, by the same rule.
fn may_close(console: &Console, caller: &Caller, session: &SessionView) -> bool {
    let access = console.service.access();
    access.owns(caller, session.owner.as_ref()) || access.administers(caller)
}

async fn sessions(console: &Console, caller: &Caller, asked: SessionsQuery) -> Result<SessionsShown, Error> {
    let after = asked.after.map(|after| session_id("after", &after)).transpose()?;
    let request = ListSessions { after, last: None, page_size: PAGE, stale: true };
    let page = console.service.call(caller, Form::Typed(request)).await?.typed()?;
    Ok(SessionsShown {
        now: console.clock.wall_ms(),
        index: page.index,
        sessions: page.sessions.into_iter().map(Into::into).collect(),
        more_after: page.more_after.map(|id| id.to_string()),
    })
}

async fn session(console: &Console, caller: &Caller, asked: &SessionQuery) -> Result<SessionPageShown, Error> {
    let after = Token(number("after", asked.after.as_deref())?);
    let request = ShowSession { session: session_id("id", &asked.id)?, after };

    let now = console.clock.wall_ms();

    Ok(match console.service.browse(caller, request).await? {
        None => SessionPageShown {
            now,
            index: 0,
            session: None,
            grants: Vec::new(),
            more: false,
            waits: Vec::new(),
            may_close: false,
        },
        Some(shown) => SessionPageShown {
            now,
            index: shown.index,
            may_close: may_close(console, caller, &shown.view),
            session: Some(shown.view.into()),
            grants: shown.grants.into_iter().map(Into::into).collect(),
            more: shown.more,
            waits: shown.waits.into_iter().map(Into::into).collect(),
        },
    })
}

async fn force_release(console: &Console, caller: &Caller, asked: ForceQuery) -> Result<ForcedShown, Error> {
    let ForceQuery { name: lock, token, reason, now } = asked;
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

async fn close_session(console: &Console, caller: &Caller, asked: &CloseQuery) -> Result<SessionClosedShown, Error> {
    let session = session_id("id", &asked.id)?;
    let reason = Reason::new(&asked.reason).map_err(Error::invalid_value("reason"))?;
    let request = CloseSession { session, reason: Some(reason) };
    console.service.call(caller, Form::Typed(request)).await?.typed()?;
    Ok(SessionClosedShown { closed: session.to_string() })
}

async fn remove_waiter(console: &Console, caller: &Caller, asked: &RemoveQuery) -> Result<WaiterRemovedShown, Error> {
    let ticket = Ticket(number("ticket", Some(&asked.ticket))?);
    let request = RemoveWaiter { name: name("name", &asked.name)?, ticket };
    let removed = console.service.call(caller, Form::Typed(request)).await?.typed()?;
    Ok(WaiterRemovedShown { removed: removed.0.map(|waiter| waiter.label.as_str().to_owned()) })
}

async fn lift_delay(console: &Console, caller: &Caller, asked: &LiftQuery) -> Result<DelayLiftedShown, Error> {
    let request = LiftDelay { name: name("name", &asked.name)? };
    let lifted = console.service.call(caller, Form::Typed(request)).await?.typed()?;
    Ok(DelayLiftedShown { lifted_ms: lifted.0 })
}

/// The recent events of the cluster, as this node saw them. As for the status, the caller needs no right, because it contains nothing about
/// locks.
fn history(console: &Console, caller: &Caller, asked: &HistoryQuery) -> Result<HistoryShown, Error> {
    console.service.admit_call(caller)?;
    let shown = console.history.after(asked.sample, asked.event);
    let start = console.cluster.start.to_string();
    let sample_ms = u64::try_from(SAMPLE_INTERVAL.as_millis()).unwrap_or(u64::MAX);
    Ok(HistoryShown { now: console.clock.wall_ms(), start, sample_ms, ..shown })
}

/// Changes of the last minutes. They need what the feed needs.
fn past_changes(console: &Console, caller: &Caller, asked: PastQuery) -> Result<PastChangesShown, Error> {
    let only = asked.lock.map(|lock| name("lock", &lock)).transpose()?;
    let prefix = only.as_ref().map_or(asked.prefix, ToString::to_string);
    let watch = WatchLocks { prefix, after_index: 0 };
    console.service.check(caller, &watch)?;

    let shown = console.history.changes(&console.cluster, &watch.prefix, only.as_ref(), PAST_MAX);
    Ok(PastChangesShown { now: console.clock.wall_ms(), ..shown })
}
