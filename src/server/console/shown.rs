//! The answers to the page, as JSON.
//!
//! Tokens and tickets are texts, because a number of JavaScript is exact only up to 2^53. Times are milliseconds.

use serde::Serialize;

use crate::api::requests::{Child, Folder};
use lockkeeper_machine::{
    Change, ChangeKind, Data, Forced, GrantView, HolderView, Identity, LockKind, LockView, Mode, SessionView, WaitView,
    WaiterView,
};
use lockkeeper_proto::v1::{Member, Role, StatusResponse};

/// Maximum number of characters of a lock's data that are shown.
const DATA_SHOWN: usize = 1024;

#[derive(Serialize)]
pub(super) struct ShownFailure<'a> {
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

#[derive(Serialize)]
pub(super) struct StatusShown {
    /// The wall clock of this node, by which the page counts.
    pub(super) now: u64,
    /// The caller's identity.
    pub(super) you: Option<String>,
    pub(super) node: NodeShown,
    pub(super) members: Vec<MemberShown>,
    /// Whether the members are as the leader sees them. Otherwise they are as this node sees them, which knows less.
    pub(super) by_leader: bool,
}

#[derive(Serialize)]
pub(super) struct NodeShown {
    cluster: String,
    id: u64,
    version: String,
    role: &'static str,
    term: u64,
    /// The leader's id, or 0 if there is none.
    leader: u64,
    last_index: u64,
    committed_index: u64,
    applied_index: u64,
    snapshot_index: u64,
    serving: bool,
    trouble: String,
    disk_trouble: String,
    sessions: u64,
    locks: u64,
    waiters: u64,
    last_token: String,
    table_bytes: u64,
    table_bytes_max: u64,
    cluster_version: u32,
    cluster_version_waits: String,
    turn_delay_us: u64,
    certificate_seconds_left: Option<i64>,
}

impl From<StatusResponse> for NodeShown {
    fn from(status: StatusResponse) -> Self {
        Self {
            role: role(status.role()),
            cluster: status.cluster_id,
            id: status.node_id,
            version: status.version,
            term: status.term,
            leader: status.leader_id,
            last_index: status.last_log_index,
            committed_index: status.committed_index,
            applied_index: status.applied_index,
            snapshot_index: status.snapshot_index,
            serving: status.serving,
            trouble: status.trouble,
            disk_trouble: status.disk_trouble,
            sessions: status.sessions,
            locks: status.locks,
            waiters: status.waiters,
            last_token: status.last_token.to_string(),
            table_bytes: status.table_bytes,
            table_bytes_max: status.table_bytes_max,
            cluster_version: status.cluster_version,
            cluster_version_waits: status.cluster_version_waits,
            turn_delay_us: status.turn_delay_us_max,
            certificate_seconds_left: status.certificate_seconds_left,
        }
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Learner => "learner",
        Role::Unspecified => "stopped",
    }
}

#[derive(Serialize)]
pub(super) struct MemberShown {
    id: u64,
    address: String,
    voter: bool,
    is_leaving: bool,
    /// The number of entries that it lacks, if that is known.
    lag: Option<u64>,
    silent_ms: Option<u64>,
    trouble: String,
    version: String,
    disk_free: u64,
    disk_total: u64,
    disk_low: bool,
    safe_to_stop: bool,
    unsafe_reason: String,
}

impl MemberShown {
    /// Shows a member of this status. `by_leader` says whether the status is the leader's.
    pub(super) fn new(member: &Member, status: &StatusResponse, by_leader: bool) -> Self {
        let is_itself = member.node_id == status.node_id;
        let lag = status.last_log_index.saturating_sub(member.matched_index);

        Self {
            id: member.node_id,
            address: member.client_address.clone(),
            voter: member.voter,
            is_leaving: member.is_leaving,
            lag: by_leader.then_some(if is_itself { 0 } else { lag }),
            silent_ms: if by_leader && is_itself { Some(0) } else { member.silent_ms },
            trouble: member.trouble.clone(),
            version: member.version.clone(),
            disk_free: member.disk_free_bytes,
            disk_total: member.disk_total_bytes,
            disk_low: member.disk_low,
            safe_to_stop: member.safe_to_stop,
            unsafe_reason: member.unsafe_reason.clone(),
        }
    }
}

#[derive(Serialize)]
pub(super) struct LevelShown {
    pub(super) now: u64,
    pub(super) index: u64,
    pub(super) children: Vec<ChildShown>,
    pub(super) more: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ChildShown {
    Lock(LockItem),
    Folder { prefix: String, locks: usize, held: usize, waiters: u64, more: bool },
}

impl From<Child> for ChildShown {
    fn from(child: Child) -> Self {
        match child {
            Child::Lock(lock) => Self::Lock(lock.into()),
            Child::Folder(Folder { prefix, locks, held, waiters, more }) => {
                Self::Folder { prefix, locks, held, waiters, more }
            }
        }
    }
}

#[derive(Serialize)]
pub(super) struct FoundShown {
    pub(super) now: u64,
    pub(super) index: u64,
    pub(super) locks: Vec<LockItem>,
    pub(super) looked: usize,
    pub(super) more_after: Option<String>,
}

#[derive(Serialize)]
pub(super) struct LockShown {
    pub(super) now: u64,
    pub(super) index: u64,
    pub(super) lock: LockItem,
    /// The session of each holder that is shown, in their order, if it is alive.
    pub(super) sessions: Vec<Option<HolderSession>>,
    /// Whether the caller may take the lock from its holders, remove its waiters and lift its lock-delay.
    pub(super) may_force: bool,
}

/// What the page of a lock says about the session of a holder: enough to see whether its client is alive.
#[derive(Serialize)]
pub(super) struct HolderSession {
    pub(super) ttl_ms: u32,
    /// The time since its last renewal, as of the last applied entry.
    pub(super) renewed_ms: u64,
    /// Whether the caller may close it.
    pub(super) may_close: bool,
}

#[derive(Serialize)]
pub(super) struct LockItem {
    name: String,
    /// Whether it is an entry of another protocol.
    is_entry: bool,
    mode: Option<String>,
    holders: Vec<HolderItem>,
    holder_count: u64,
    waiters: Vec<WaiterItem>,
    queue_length: u64,
    data: Option<DataShown>,
    keeps_data: bool,
    delay_ms: u64,
}

#[derive(Serialize)]
struct HolderItem {
    token: String,
    session: String,
    label: String,
    mode: String,
    since: u64,
    remaining_ms: u64,
    revoked: Option<String>,
}

#[derive(Serialize)]
struct WaiterItem {
    ticket: String,
    session: String,
    label: String,
    mode: String,
    since: u64,
    remaining_ms: Option<u64>,
}

/// The first part of a lock's data.
#[derive(Serialize)]
struct DataShown {
    bytes: usize,
    /// The data as text, if they are text.
    text: Option<String>,
}

impl From<&Data> for DataShown {
    fn from(data: &Data) -> Self {
        let bytes = data.as_bytes();
        let text = std::str::from_utf8(bytes).ok();
        let text = text.map(|text| text.chars().take(DATA_SHOWN).collect());
        Self { bytes: bytes.len(), text }
    }
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Permit(permits) => format!("permit of {}", permits.get()),
    }
}

impl From<LockView> for LockItem {
    fn from(lock: LockView) -> Self {
        Self {
            name: lock.name.to_string(),
            is_entry: lock.kind == LockKind::Entry,
            mode: lock.mode.map(mode),
            holders: lock.holders.into_iter().map(HolderItem::from).collect(),
            holder_count: lock.holder_count,
            waiters: lock.waiters.into_iter().map(WaiterItem::from).collect(),
            queue_length: lock.queue_length,
            data: lock.data.as_ref().map(DataShown::from),
            keeps_data: lock.keep_data,
            delay_ms: lock.delay_remaining_ms,
        }
    }
}

impl From<HolderView> for HolderItem {
    fn from(holder: HolderView) -> Self {
        Self {
            token: holder.token.0.to_string(),
            session: holder.session.to_string(),
            label: holder.label.as_str().to_owned(),
            mode: mode(holder.mode),
            since: holder.since.0,
            remaining_ms: holder.remaining_ms,
            revoked: holder.revoked.map(|reason| reason.as_str().to_owned()),
        }
    }
}

impl From<WaiterView> for WaiterItem {
    fn from(waiter: WaiterView) -> Self {
        Self {
            ticket: waiter.ticket.0.to_string(),
            session: waiter.session.to_string(),
            label: waiter.label.as_str().to_owned(),
            mode: mode(waiter.mode),
            since: waiter.since.0,
            remaining_ms: waiter.remaining_ms,
        }
    }
}

#[derive(Serialize)]
pub(super) struct SessionsShown {
    pub(super) now: u64,
    pub(super) index: u64,
    pub(super) sessions: Vec<SessionItem>,
    pub(super) more_after: Option<String>,
}

#[derive(Serialize)]
pub(super) struct SessionPageShown {
    pub(super) now: u64,
    pub(super) index: u64,
    /// The session, if it is alive.
    pub(super) session: Option<SessionItem>,
    pub(super) grants: Vec<GrantItem>,
    /// Whether there are more grants, above the last one.
    pub(super) more: bool,
    pub(super) waits: Vec<WaitItem>,
    /// Whether the caller may close it.
    pub(super) may_close: bool,
}

#[derive(Serialize)]
pub(super) struct SessionItem {
    id: String,
    label: String,
    ttl_ms: u32,
    remaining_ms: u64,
    opened: u64,
    grants: u32,
    waits: u32,
    address: String,
    owner: Option<String>,
    bytes: u64,
}

impl From<SessionView> for SessionItem {
    fn from(session: SessionView) -> Self {
        Self {
            id: session.session.to_string(),
            label: session.label.as_str().to_owned(),
            ttl_ms: session.ttl.as_millis(),
            remaining_ms: session.remaining_ms,
            opened: session.opened.0,
            grants: session.grants,
            waits: session.waits,
            address: session.address.map_or_else(String::new, |address| address.to_string()),
            owner: session.owner.map(|owner| owner.to_string()),
            bytes: session.bytes,
        }
    }
}

#[derive(Serialize)]
pub(super) struct GrantItem {
    token: String,
    since: u64,
    names: Vec<String>,
    revoked: Option<String>,
}

impl From<GrantView> for GrantItem {
    fn from(grant: GrantView) -> Self {
        Self {
            token: grant.token.0.to_string(),
            since: grant.since.0,
            names: grant.names.iter().map(ToString::to_string).collect(),
            revoked: grant.revoked.map(|reason| reason.as_str().to_owned()),
        }
    }
}

#[derive(Serialize)]
pub(super) struct WaitItem {
    ticket: String,
    since: u64,
    names: Vec<String>,
}

impl From<WaitView> for WaitItem {
    fn from(wait: WaitView) -> Self {
        let names = wait.names.iter().map(ToString::to_string).collect();
        Self { ticket: wait.ticket.0.to_string(), since: wait.since.0, names }
    }
}

#[derive(Serialize)]
pub(super) struct ForcedShown {
    pub(super) forced: Vec<ForcedGrant>,
    /// Whether there are more grants, of the same lock.
    pub(super) more: bool,
}

#[derive(Serialize)]
pub(super) struct ForcedGrant {
    token: String,
    label: String,
    /// The time until the grant is lost, unless it is released before.
    remaining_ms: u64,
}

impl From<Forced> for ForcedGrant {
    fn from(forced: Forced) -> Self {
        let label = forced.label.as_str().to_owned();
        Self { token: forced.token.0.to_string(), label, remaining_ms: forced.remaining_ms }
    }
}

#[derive(Serialize)]
pub(super) struct SessionClosedShown {
    /// The session.
    pub(super) closed: String,
}

#[derive(Serialize)]
pub(super) struct WaiterRemovedShown {
    /// The label of the session that waited, if this ticket waited for the lock.
    pub(super) removed: Option<String>,
}

#[derive(Serialize)]
pub(super) struct DelayLiftedShown {
    /// How long the lock-delay would have lasted, if there was one.
    pub(super) lifted_ms: Option<u64>,
}

/// What happened lately, without the changes of locks.
#[derive(Serialize, Default)]
pub(super) struct HistoryShown {
    pub(super) now: u64,
    /// Identifies the start of the process: its numbers begin anew with each.
    pub(super) start: String,
    pub(super) sample_ms: u64,
    pub(super) samples: Vec<SampleShown>,
    pub(super) events: Vec<EventShown>,
}

#[derive(Serialize)]
pub(super) struct SampleShown {
    pub(super) number: u64,
    pub(super) age_ms: u64,
    /// Grants a second.
    pub(super) grants: f64,
    pub(super) waiters: u64,
    /// Whether the node leads: then `commit` is the time to commit, otherwise the time to apply.
    pub(super) leads: bool,
    pub(super) serving: bool,
    /// 99th percentiles, seconds.
    pub(super) commit: Option<f64>,
    pub(super) sync: Option<f64>,
}

#[derive(Serialize)]
pub(super) struct EventShown {
    pub(super) number: u64,
    pub(super) age_ms: u64,
    pub(super) kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) leader: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) term: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<&'static str>,
}

/// Changes of locks of the last minutes, the newest first.
#[derive(Serialize)]
pub(super) struct PastChangesShown {
    pub(super) now: u64,
    /// A feed that begins after this entry goes on where the changes end; 0: the node has not caught up yet.
    pub(super) index: u64,
    pub(super) changes: Vec<PastChangeShown>,
    /// The number of changes that are not kept, of all locks.
    pub(super) left_out: u64,
}

#[derive(Serialize)]
pub(super) struct PastChangeShown {
    pub(super) age_ms: u64,
    #[serde(flatten)]
    pub(super) change: ChangeShown,
}

/// A line of the feed.
#[derive(Serialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub(super) enum FeedLine<'a> {
    /// The changes since the line before, in their order. Without any, nothing has changed.
    Changes {
        now: u64,
        /// A feed that begins after this entry misses nothing.
        #[serde(skip_serializing_if = "Option::is_none")]
        index: Option<u64>,
        changes: &'a [ChangeShown],
        counts: &'a ChangeCounts,
    },
    /// Some changes are unknown, because there were too many or because they are too long ago.
    Gap { now: u64 },
    /// The feed ends. Open it again.
    End { reason: &'a str, message: &'a str },
}

/// The numbers of changes of each kind, including those that are not shown.
#[derive(Serialize, Default, Debug, PartialEq, Eq)]
pub(super) struct ChangeCounts {
    pub(super) granted: u32,
    pub(super) released: u32,
    pub(super) lost: u32,
    pub(super) forced: u32,
    pub(super) queued: u32,
    pub(super) left: u32,
    /// The number of changes that are not shown.
    pub(super) left_out: u32,
}

impl ChangeCounts {
    pub(super) fn add(&mut self, kind: &ChangeKind) {
        let count = match kind {
            ChangeKind::Granted { .. } => &mut self.granted,
            ChangeKind::Released { .. } => &mut self.released,
            ChangeKind::Lost { reason: None, .. } => &mut self.lost,
            ChangeKind::Lost { reason: Some(_), .. } => &mut self.forced,
            ChangeKind::Queued { .. } => &mut self.queued,
            ChangeKind::Left { .. } => &mut self.left,
            ChangeKind::Revoked { .. }
            | ChangeKind::Data(_)
            | ChangeKind::Delayed
            | ChangeKind::Opened
            | ChangeKind::Resized(_) => return,
        };

        *count = count.saturating_add(1);
    }
}

#[derive(Serialize, Default, Clone, Debug)]
pub(super) struct ChangeShown {
    name: String,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    /// Whether it was granted after a wait.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    waited: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
}

impl ChangeShown {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The bytes of its texts.
    pub(super) fn text_bytes(&self) -> usize {
        let Self { name, token, session, label, mode, reason, by, .. } = self;
        let optional = [token, session, label, mode, reason, by];
        name.len() + optional.into_iter().flatten().map(String::len).sum::<usize>()
    }
}

impl From<Change> for ChangeShown {
    fn from(Change { name, kind, .. }: Change) -> Self {
        let by_whom = |by: Option<Identity>| by.map(|by| by.to_string());
        let shown = |kind| Self { name: name.to_string(), kind, ..Self::default() };

        match kind {
            ChangeKind::Granted { token, session, label, mode: granted, ticket } => Self {
                token: Some(token.0.to_string()),
                session: Some(session.to_string()),
                label: Some(label.as_str().to_owned()),
                mode: Some(mode(granted)),
                waited: ticket.is_some(),
                ..shown("granted")
            },
            ChangeKind::Released { token, session, .. } => {
                Self { token: Some(token.0.to_string()), session: Some(session.to_string()), ..shown("released") }
            }
            ChangeKind::Lost { token, session, reason, by, .. } => Self {
                token: Some(token.0.to_string()),
                session: Some(session.to_string()),
                by: by_whom(by),
                ..match reason {
                    Some(reason) => Self { reason: Some(reason.as_str().to_owned()), ..shown("forced") },
                    None => shown("expired"),
                }
            },
            ChangeKind::Revoked { token, session, reason, by } => Self {
                token: Some(token.0.to_string()),
                session: Some(session.to_string()),
                reason: Some(reason.as_str().to_owned()),
                by: by_whom(by),
                ..shown("revoked")
            },
            ChangeKind::Queued { session, label, mode: wanted, .. } => Self {
                session: Some(session.to_string()),
                label: Some(label.as_str().to_owned()),
                mode: Some(mode(wanted)),
                ..shown("queued")
            },
            ChangeKind::Left { session, .. } => Self { session: Some(session.to_string()), ..shown("left") },
            ChangeKind::Data(_) => shown("data"),
            ChangeKind::Delayed => shown("delayed"),
            ChangeKind::Opened => shown("opened"),
            ChangeKind::Resized(permits) => {
                Self { mode: Some(format!("permit of {}", permits.get())), ..shown("resized") }
            }
        }
    }
}
