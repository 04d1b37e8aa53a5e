//! How scripts show the machine's types: short, one a line, without fields that carry no information.

use std::sync::Arc;

use lockkeeper::machine::*;

/// A name of up to 16 bytes as a session's id, so that outputs can show the name.
pub(crate) fn session_id(name: &str) -> SessionId {
    let mut bytes = [0; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    SessionId(u128::from_be_bytes(bytes))
}

pub(crate) fn show(what: &impl Show) -> String {
    what.show()
}

pub(crate) trait Show {
    fn show(&self) -> String;
}

fn join<'a, T: Show + 'a>(items: impl IntoIterator<Item = &'a T>, between: &str) -> String {
    items.into_iter().map(Show::show).collect::<Vec<_>>().join(between)
}

impl Show for SessionId {
    fn show(&self) -> String {
        let bytes = self.0.to_be_bytes();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').into()
    }
}

impl Show for LockName {
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Show for Mode {
    fn show(&self) -> String {
        match self {
            Self::Exclusive => "exclusive".into(),
            Self::Shared => "shared".into(),
            Self::Permit(permits) => format!("permit-of-{}", permits.get()),
        }
    }
}

impl Show for SessionEnd {
    fn show(&self) -> String {
        match self {
            Self::Closed => "closed",
            Self::Expired => "expired",
            Self::Unknown => "unknown",
        }
        .into()
    }
}

impl Show for Data {
    fn show(&self) -> String {
        format!("{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

impl Show for HolderView {
    fn show(&self) -> String {
        let Self { token, session, label, mode, since, remaining_ms, revoked, origin } = self;
        let from = origin.address.map(|address| format!(" from={address}")).unwrap_or_default();
        let label = if label.as_str() == show(session) { String::new() } else { format!(" ({})", label.as_str()) };
        let revoked = revoked.as_ref().map(|reason| format!(" revoked={:?}", reason.as_str())).unwrap_or_default();
        format!(
            "{}{label} token={} {} since={} remaining={remaining_ms}{revoked}{from}",
            show(session),
            token.0,
            show(mode),
            since.0
        )
    }
}

impl Show for WaiterView {
    fn show(&self) -> String {
        let Self { ticket, session, label: _, mode, since, remaining_ms } = self;
        let remaining = remaining_ms.map_or("forever".into(), |ms| ms.to_string());
        format!("{} ticket={} {} since={} remaining={remaining}", show(session), ticket.0, show(mode), since.0)
    }
}

impl Show for LockView {
    fn show(&self) -> String {
        let mode = self.mode.as_ref().map_or("free".into(), show);
        let mut text = format!("{}: {mode} holders={} queue={}", self.name, self.holder_count, self.queue_length);
        if self.kind == LockKind::Entry {
            text += " of entries";
        }
        if self.resized {
            text += " resized";
        }
        if self.delay_remaining_ms > 0 {
            text += &format!(" delay={}", self.delay_remaining_ms);
        }
        if let Some(data) = &self.data {
            text += &format!(" data={}{}", show(data), if self.keep_data { " kept" } else { "" });
        }
        text.push('\n');
        self.holders.iter().for_each(|holder| text += &format!("  held by {}\n", show(holder)));
        self.waiters.iter().for_each(|waiter| text += &format!("  awaited by {}\n", show(waiter)));
        text
    }
}

impl Show for SessionView {
    fn show(&self) -> String {
        let Self { session, label, ttl, remaining_ms, opened, grants, waits, address, owner, bytes: _ } = self;
        let from = address.map(|address| format!(" from={address}")).unwrap_or_default();
        let owner = owner.as_ref().map(|owner| format!(" owner={owner}")).unwrap_or_default();
        format!(
            "{} label={:?} ttl={} remaining={remaining_ms} opened={} grants={grants} waits={waits}{from}{owner}",
            show(session),
            label.as_str(),
            ttl.as_millis(),
            opened.0
        )
    }
}

impl Show for Busy {
    fn show(&self) -> String {
        let Self { name, holder, queue_length, delay_remaining_ms } = self;
        let holder = holder.as_ref().map_or("nobody".into(), show);
        let delay = if *delay_remaining_ms > 0 { format!(" delay={delay_remaining_ms}") } else { String::new() };
        format!("{name} held by {holder} queue={queue_length}{delay}")
    }
}

impl Show for Revocation {
    fn show(&self) -> String {
        format!("token={} reason={:?} remaining={}", self.token.0, self.reason.as_str(), self.remaining_ms)
    }
}

impl Show for Renewal {
    fn show(&self) -> String {
        match self {
            Self::Renewed { ttl, revoked, .. } if revoked.is_empty() => format!("renewed ttl={}", ttl.as_millis()),
            Self::Renewed { ttl, revoked, more } => {
                let more = if *more { ", and more" } else { "" };
                format!("renewed ttl={}, revoked: {}{more}", ttl.as_millis(), join(revoked, ", "))
            }
            Self::Ended(end) => format!("ended: {}", show(end)),
        }
    }
}

impl Show for Forced {
    fn show(&self) -> String {
        let delay = if self.lock_delay_ms > 0 { format!(" delay={}", self.lock_delay_ms) } else { String::new() };
        format!("{} token={} remaining={}{delay}", show(&self.session), self.token.0, self.remaining_ms)
    }
}

impl Show for OpenIds {
    fn show(&self) -> String {
        let kept: Vec<_> = self.kept().iter().map(u64::to_string).collect();
        let kept = if kept.is_empty() { String::new() } else { format!(" kept={}", kept.join(",")) };
        format!("lowest={}{kept}", self.lowest())
    }
}

impl Show for WaitEnd {
    fn show(&self) -> String {
        match self {
            Self::Granted(Grant { token, session: _, names }) => {
                format!("granted {} token={}", join(names.iter(), " "), token.0)
            }
            Self::TimedOut(busy) => format!("timed out: {}", show(busy)),
            Self::Cancelled => "cancelled".into(),
            Self::Abandoned => "abandoned".into(),
            Self::Removed => "removed".into(),
            Self::SessionEnded(end) => format!("session ended: {}", show(end)),
        }
    }
}

impl Show for Refusal {
    fn show(&self) -> String {
        match self {
            Self::SessionEnded(end) => format!("session ended: {}", show(end)),
            Self::SessionExists => "session exists".into(),
            Self::Closed { remaining_ms } => format!("closed for {remaining_ms} ms"),
            Self::NotHeld => "not held".into(),
            Self::Revoked { token, reason } => format!("revoked: token={} reason={:?}", token.0, reason.as_str()),
            Self::ModeMismatch { name, in_use: None } => format!("mode mismatch: {name} is in use as a lock"),
            Self::ModeMismatch { name, in_use: Some(permits) } => {
                format!("mode mismatch: {name} is in use as a semaphore of {}", permits.get())
            }
            Self::LockUnknown { name } => format!("no such lock: {name}"),
            Self::NotSemaphore { name } => format!("not a semaphore in use: {name}"),
            Self::Abandoned => "abandoned".into(),
            Self::RequestStale { lowest } => format!("request stale: lowest={lowest}"),
            Self::RequestReused => "request reused".into(),
            Self::RevisionFuture { present } => format!("the keyspace is at revision {}", present.0),
            Self::SessionMoved { number } => format!("session moved: attached as {number}"),
            Self::TxnFailed { index, reason } => format!("operation {index}: {reason}"),
            Self::Limit(limit) => format!("limit: {limit:?}"),
        }
    }
}

impl Show for Key {
    fn show(&self) -> String {
        String::from_utf8_lossy(self.as_bytes()).into()
    }
}

impl Show for Entry {
    fn show(&self) -> String {
        let Self {
            created,
            modified,
            version,
            lease,
            until,
            claim,
            is_expired,
            is_revoked,
            is_temporary,
            kin: _,
            value,
        } = self;
        let lease = lease.map(|Lease { session, at_end }| {
            let kept = if at_end == AtLeaseEnd::Keep { " kept" } else { "" };
            format!(" lease={}{kept}", show(&session))
        });
        let claim = claim.as_ref().map(|claim| {
            let what = if claim.is_held { "holds" } else { "awaits" };
            let label = claim.label.as_str();
            let label = if label.is_empty() { String::new() } else { format!(" label={label:?}") };
            format!(" {what} {} token={} since={}{label}", claim.lock, claim.token.0, claim.since.0)
        });
        let parent = self.parent().map_or_else(String::new, |parent| format!(" below {}", show(parent)));
        let children = self.children().map_or_else(String::new, |Children { made, live, changed }| {
            format!(" children={live} of {made} changed={}", changed.0)
        });
        format!(
            "{:?} created={} modified={} version={version}{}{}{}{}{}",
            String::from_utf8_lossy(value.as_bytes()),
            created.0,
            modified.0,
            lease.unwrap_or_default(),
            until.map_or_else(String::new, |until| format!(" until={}", until.0)),
            claim.unwrap_or_default(),
            if *is_expired { " expired" } else { "" },
            if *is_revoked { " revoked" } else { "" }
        ) + if *is_temporary { " temporary" } else { "" }
            + &parent
            + &children
    }
}

impl Show for EntryEvent {
    fn show(&self) -> String {
        let Self { revision, key, before, after } = self;
        let entry = |entry: &Option<Arc<Entry>>| entry.as_deref().map_or_else(|| "nothing".into(), show);
        format!("{}: {}: {} -> {}", revision.0, show(key), entry(before), entry(after))
    }
}

impl Show for TxnResult {
    fn show(&self) -> String {
        match self {
            Self::Got(None) => "no entry".into(),
            Self::Got(Some(entry)) => show(&**entry),
            Self::Put => "put".into(),
            Self::PutChild(key) => format!("put {}", show(key)),
            Self::Expires(true) => "expires".into(),
            Self::Expires(false) => "no entry expires".into(),
            Self::Deleted(count) => format!("deleted {count}"),
            Self::Opened(ttl) => format!("opened ttl={}", ttl.as_millis()),
            Self::Selected(Selected { entries, count, more }) => {
                let more = if *more { " and more" } else { "" };
                let shown = |(key, entry): &(Key, Arc<Entry>)| format!("\n    {key:?} {}", show(&**entry));
                format!("selected of {count}{more}{}", entries.iter().map(shown).collect::<String>())
            }
        }
    }
}

impl Show for Reply {
    fn show(&self) -> String {
        match self {
            Self::Opened(ttl) => format!("opened ttl={}", ttl.as_millis()),
            Self::Renewed(renewals) => join(renewals, "\n"),
            Self::OwnerSet => "owner set".to_owned(),
            Self::Attached(Attachment { number, ttl }) => format!("attached as {number} ttl={}", ttl.as_millis()),
            Self::Closed => "closed".into(),
            Self::Queued(ticket) => format!("queued ticket={}", ticket.0),
            Self::Acquired(end) => show(end),
            Self::Busy(busy) => format!("busy: {}", show(busy)),
            Self::Released(Released::Grant) => "released a grant".into(),
            Self::Released(Released::Wait) => "released a wait".into(),
            Self::Released(Released::Nothing) => "released nothing".into(),
            Self::Updated => "updated".into(),
            Self::WaitCancelled(true) => "wait cancelled".into(),
            Self::WaitCancelled(false) => "no such wait".into(),
            Self::Forced { grants, .. } if grants.is_empty() => "forced nothing".into(),
            Self::Forced { grants, more_up_to } => {
                let more = more_up_to.map(|token| format!(", and more up to token={}", token.0)).unwrap_or_default();
                format!("forced {}{more}", join(grants, ", "))
            }
            Self::WaiterRemoved(Some(waiter)) => format!("removed {}", show(waiter)),
            Self::WaiterRemoved(None) => "removed nobody".into(),
            Self::DelayLifted(Some(ms)) => format!("lifted {ms}"),
            Self::DelayLifted(None) => "lifted nothing".into(),
            Self::DataDropped { dropped, more_after } => {
                let more = more_after.as_ref().map(|name| format!(", and more after {name}")).unwrap_or_default();
                format!("dropped {dropped}{more}")
            }
            Self::Resized { before, holders, waiters } => {
                format!("resized from {} holders={holders} queue={waiters}", before.get())
            }
            Self::Committed(Committed { succeeded, failed, revision, results, now: _ }) => {
                assert_eq!(*succeeded, failed.is_none(), "a failure has a reason");
                let branch = match failed {
                    None => "succeeded".to_owned(),
                    Some(TxnFailure::Compare(0)) => "failed".to_owned(),
                    Some(TxnFailure::Compare(index)) => format!("failed (compare {index})"),
                    Some(TxnFailure::Operation { index, reason }) => format!("failed (operation {index}: {reason})"),
                };
                let results: String = results.iter().map(|result| format!("\n  {}", show(result))).collect();
                format!("{branch} revision={}{results}", revision.0)
            }
            Self::Compacted(revision) => format!("compacted up to revision={}", revision.0),
            Self::Ticked => "ticked".into(),
            Self::VersionRaised(version) => format!("cluster version {version}"),
            Self::Noted => "noted".into(),
            Self::Probed => "probed".into(),
            Self::Refused(refusal) => format!("refused: {}", show(refusal)),
        }
    }
}

impl Show for Event {
    fn show(&self) -> String {
        match self {
            Self::WaitEnded { ticket, end } => format!("wait {} ended: {}", ticket.0, show(end)),
            Self::SessionEnded { session, end } => format!("session {} ended: {}", show(session), show(end)),
            Self::Revoked { session, revocation } => format!("tell {}: revoked {}", show(session), show(revocation)),
            Self::Changed(Change { name, of: LockKind::Lock, kind }) => format!("{name}: {}", show(kind)),
            Self::Changed(Change { name, of: LockKind::Entry, kind }) => format!("{name}: entry {}", show(kind)),
        }
    }
}

impl Show for ChangeKind {
    fn show(&self) -> String {
        let why = |reason: &Reason| format!(" reason={:?}", reason.as_str());
        let who = |by: &Option<Identity>| by.as_ref().map(|by| format!(" by={by}")).unwrap_or_default();
        match self {
            Self::Granted { token, session, label: _, mode, ticket } => {
                let ticket = ticket.map(|ticket| format!(" ticket={}", ticket.0)).unwrap_or_default();
                format!("granted to {} token={}{ticket} {}", show(session), token.0, show(mode))
            }
            Self::Released { token, session, .. } => format!("released by {} token={}", show(session), token.0),
            Self::Lost { token, session, reason, by, .. } => {
                let reason = reason.as_ref().map(why).unwrap_or_default();
                format!("lost by {} token={}{reason}{}", show(session), token.0, who(by))
            }
            Self::Revoked { token, session, reason, by } => {
                format!("revoked from {} token={}{}{}", show(session), token.0, why(reason), who(by))
            }
            Self::Queued { ticket, session, label: _, mode } => {
                format!("queued {} ticket={} {}", show(session), ticket.0, show(mode))
            }
            Self::Left { ticket, session } => format!("left by {} ticket={}", show(session), ticket.0),
            Self::Data(None) => "data dropped".into(),
            Self::Data(Some(data)) => format!("data {}", show(data)),
            Self::Delayed => "delayed".into(),
            Self::Opened => "opened".into(),
            Self::Resized(permits) => format!("resized to {}", permits.get()),
        }
    }
}

impl Show for Record {
    fn show(&self) -> String {
        match self {
            Self::Clock { now, last_token, last_ticket, is_behind } => {
                let behind = if *is_behind { " behind" } else { "" };
                format!("clock now={} last_token={} last_ticket={}{behind}", now.0, last_token.0, last_ticket.0)
            }
            Self::Closed { until } => format!("closed until {}", until.0),
            Self::Ended { session, end } => format!("ended {} {}", show(session), show(end)),
            Self::Session {
                session,
                label: _,
                ttl,
                deadline,
                opened,
                address,
                open,
                owner,
                is_of_entries,
                is_temporary,
                attached,
            } => format!(
                "session {} ttl={} deadline={} opened={} {}{}{}{}{}",
                show(session),
                ttl.as_millis(),
                deadline.0,
                opened.0,
                show(open),
                address.map(|address| format!(" from={address}")).unwrap_or_default(),
                owner.as_ref().map(|owner| format!(" owner={owner}")).unwrap_or_default(),
                if *is_temporary {
                    " of a temporary entry"
                } else if *is_of_entries {
                    " of entries"
                } else {
                    ""
                },
                if *attached > 0 { format!(" attached={attached}") } else { String::new() }
            ),
            Self::Lock { name, data, keep_data, closed_until } => {
                let data = data.as_ref().map(|data| format!(" data={} keep={keep_data}", show(data)));
                let closed = closed_until.map(|until| format!(" closed_until={}", until.0));
                format!("lock {name}{}{}", data.unwrap_or_default(), closed.unwrap_or_default())
            }
            Self::Grant { token, session, locks, lock_delay_ms, since, revoked, revoked_by } => {
                let locks: Vec<_> = locks.iter().map(|(name, mode)| format!("{name} {}", show(mode))).collect();
                let revoked =
                    revoked.as_ref().map(|(reason, at)| format!(" revoked={:?} at={}", reason.as_str(), at.0));
                let by = revoked_by.as_ref().map(|by| format!(" by={by}")).unwrap_or_default();
                format!(
                    "grant {} {} [{}] delay={lock_delay_ms} since={}{}{by}",
                    token.0,
                    show(session),
                    locks.join(", "),
                    since.0,
                    revoked.unwrap_or_default()
                )
            }
            Self::Taken { token, session, reason } => {
                format!("taken {} {} reason={:?}", token.0, show(session), reason.as_str())
            }
            Self::Wait { ticket, session, request, acquire, deadline, since, repeats } => {
                let wants: Vec<_> =
                    acquire.wants().iter().map(|want| format!("{} {}", want.name, show(&want.mode))).collect();
                let deadline = deadline.map_or("never".into(), |at| at.0.to_string());
                let request = request.map(|id| format!(" request={id}")).unwrap_or_default();
                let repeats = if *repeats > 0 { format!(" repeats={repeats}") } else { String::new() };
                format!(
                    "wait {} {} [{}] deadline={deadline} since={}{request}{repeats}",
                    ticket.0,
                    show(session),
                    wants.join(", "),
                    since.0
                )
            }
            Self::Resized { name, permits } => format!("resized {name} {}", permits.get()),
            Self::Version { version } => format!("version {version}"),
            Self::Entry { key, entry } => format!("entry {}: {}", show(key), show(&**entry)),
            Self::Compacted { revision } => format!("compacted {}", revision.0),
            Self::EntryEvent { revision, key, before } => {
                let before = before.as_deref().map_or_else(|| "nothing".into(), show);
                format!("event {} of {}, before: {before}", revision.0, show(key))
            }
            Self::Reply { session, request, asked, reply } => {
                let asked = match asked {
                    RememberedRequest::Acquire(names) => format!("acquire {}", join(names.iter(), " ")),
                    RememberedRequest::Release(Target::Grant(token)) => format!("release token={}", token.0),
                    RememberedRequest::Release(Target::Acquire(id)) => format!("release acquire={id}"),
                    RememberedRequest::Update(token, name) => format!("update {name} token={}", token.0),
                    RememberedRequest::Abandoned => "abandoned".into(),
                };
                format!("reply {} {request} to {asked}: {}", show(session), show(reply))
            }
            Self::Work(Work::EndSession { session, end, at }) => {
                format!("work: end session {}: {} at={}", show(session), show(end), at.0)
            }
            Self::Work(Work::HandOn { name }) => format!("work: hand on {name}"),
        }
    }
}
