//! The table's records as messages, one [`pb::Record`] each: the content of a snapshot.
//!
//! Impossible records have no message: a session with an unknown end, a reply that is never remembered. Damage of a snapshot is found by
//! its checksum; a malformed record comes from a newer version, or from a bug.

use prost::Message;

use super::{
    Malformed,
    keyspace::{read_entry, read_key, write_entry, write_key},
    values::*,
};
use crate::messages::{self as pb, record as r};
use lockkeeper_machine::*;

/// Encodes one record.
pub fn encode(record: &Record) -> Vec<u8> {
    pb::Record { kind: Some(write_record(record)) }.encode_to_vec()
}

/// Decodes what [`encode`] wrote. Fails on anything else.
pub fn decode(bytes: &[u8]) -> Result<Record, Malformed> {
    let record = pb::Record::decode(bytes).map_err(|_| Malformed("a record that cannot be decoded"))?;
    read_record(record.kind.ok_or(Malformed("a record of an unknown kind"))?)
}

fn write_record(record: &Record) -> r::Kind {
    match record {
        Record::Clock { now, last_token, last_ticket, is_behind } => r::Kind::Clock(r::Clock {
            now_ms: now.0,
            last_token: last_token.0,
            last_ticket: last_ticket.0,
            is_behind: *is_behind,
        }),
        Record::Version { version } => r::Kind::Version(r::Version { version: version.0 }),
        Record::Ended { session, end } => {
            r::Kind::Ended(r::Ended { session: write_session(*session), end: write_end(*end).into() })
        }
        Record::Session {
            session,
            label,
            ttl,
            deadline,
            opened,
            address,
            open,
            owner,
            is_of_entries,
            is_temporary,
            attached,
        } => r::Kind::Session(r::Session {
            session: write_session(*session),
            label: label.as_str().into(),
            ttl_ms: ttl.as_millis(),
            deadline_ms: deadline.0,
            opened_wall_ms: opened.0,
            lowest: open.lowest(),
            kept: open.kept().to_vec(),
            address: write_address(*address),
            owner: write_identity(owner.as_ref()),
            of_entries: *is_of_entries,
            temporary: *is_temporary,
            attached: *attached,
        }),

        Record::Lock { name, data, keep_data, closed_until } => {
            write_lock(name, data.as_ref(), *keep_data, *closed_until)
        }
        Record::Grant { token, session, locks, lock_delay_ms, since, revoked, revoked_by } => {
            r::Kind::Grant(r::Grant {
                token: token.0,
                session: write_session(*session),
                locks: locks.iter().map(|(name, mode)| write_held(name, *mode)).collect(),
                lock_delay_ms: *lock_delay_ms,
                since_wall_ms: since.0,
                revoked: revoked.as_ref().map(write_revoked),
                revoked_by: write_identity(revoked_by.as_ref()),
            })
        }
        Record::Taken { token, session, reason } => r::Kind::Taken(r::Taken {
            token: token.0,
            session: write_session(*session),
            reason: reason.as_str().into(),
        }),

        Record::Wait { ticket, session, request, acquire, deadline, since, repeats } => {
            let asked = r::Wait { request: *request, repeats: *repeats, ..write_waiting(acquire, *deadline, *since) };
            r::Kind::Wait(r::Wait { ticket: ticket.0, session: write_session(*session), ..asked })
        }

        Record::Resized { name, permits } => {
            r::Kind::Resized(r::Resized { name: name.as_str().into(), permits: permits.get() })
        }
        Record::Reply { session, request, asked, reply } => write_reply(*session, *request, asked, reply),
        Record::Entry { key, entry } => {
            r::Kind::Entry(pb::KeyEntry { key: write_key(key), entry: Some(write_entry(entry)) })
        }
        Record::Closed { until } => r::Kind::ClosedUntilMs(until.0),
        Record::Compacted { revision } => r::Kind::Compacted(revision.0),
        Record::EntryEvent { revision, key, before } => {
            let before = before.as_deref().map(write_entry);
            r::Kind::EntryEvent(pb::EntryEvent { revision: revision.0, key: write_key(key), before, after: None })
        }
        Record::Work(work) => r::Kind::Work(r::Work { kind: Some(write_work(work)) }),
    }
}

fn write_lock(name: &LockName, data: Option<&Data>, keep_data: bool, closed_until: Option<Stamp>) -> r::Kind {
    r::Kind::Lock(r::Lock {
        name: name.as_str().into(),
        data: write_data(data),
        keep_data,
        closed_until_ms: closed_until.map(|until| until.0),
    })
}

/// What a waiter waits for, and until when. The caller says who waits.
fn write_waiting(acquire: &Acquire, deadline: Option<Stamp>, since: WallTime) -> r::Wait {
    r::Wait {
        wants: write_wants(acquire),
        wait_ms: write_wait(acquire.wait),
        lock_delay_ms: acquire.lock_delay_ms,
        deadline_ms: deadline.map(|deadline| deadline.0),
        since_wall_ms: since.0,
        ..r::Wait::default()
    }
}

fn write_reply(session: SessionId, request: u64, asked: &RememberedRequest, reply: &Reply) -> r::Kind {
    r::Kind::Reply(r::Reply {
        session: write_session(session),
        request,
        asked: Some(r::Asked { kind: Some(write_asked(asked)) }),
        answer: Some(r::Answer { kind: write_answer(reply) }),
    })
}

fn write_revoked((reason, deadline): &(Reason, Stamp)) -> r::Revoked {
    r::Revoked { reason: reason.as_str().into(), deadline_ms: deadline.0 }
}

fn read_record(record: r::Kind) -> Result<Record, Malformed> {
    Ok(match record {
        r::Kind::Clock(clock) => Record::Clock {
            now: Stamp(clock.now_ms),
            last_token: Token(clock.last_token),
            last_ticket: Ticket(clock.last_ticket),
            is_behind: clock.is_behind,
        },
        r::Kind::Version(r::Version { version }) => Record::Version { version: Version(version) },
        r::Kind::Ended(ended) => Record::Ended { session: read_session(&ended.session)?, end: read_end(ended.end())? },
        r::Kind::Session(session) => read_session_record(session)?,
        r::Kind::Lock(lock) => Record::Lock {
            name: read_name(&lock.name)?,
            data: read_data(lock.data),
            keep_data: lock.keep_data,
            closed_until: lock.closed_until_ms.map(Stamp),
        },
        r::Kind::Grant(grant) => Record::Grant {
            token: Token(grant.token),
            session: read_session(&grant.session)?,
            locks: grant.locks.into_iter().map(read_held).collect::<Result<_, _>>()?,
            lock_delay_ms: grant.lock_delay_ms,
            since: WallTime(grant.since_wall_ms),
            revoked: match grant.revoked {
                None => None,
                Some(revoked) => Some((read_reason(&revoked.reason)?, Stamp(revoked.deadline_ms))),
            },
            revoked_by: read_identity(&grant.revoked_by)?,
        },

        r::Kind::Taken(taken) => Record::Taken {
            token: Token(taken.token),
            session: read_session(&taken.session)?,
            reason: read_reason(&taken.reason)?,
        },

        r::Kind::Wait(wait) => Record::Wait {
            ticket: Ticket(wait.ticket),
            session: read_session(&wait.session)?,
            request: wait.request,
            acquire: read_acquire(wait.wants, wait.wait_ms, wait.lock_delay_ms)?,
            deadline: wait.deadline_ms.map(Stamp),
            since: WallTime(wait.since_wall_ms),
            repeats: wait.repeats,
        },

        r::Kind::Resized(r::Resized { name, permits }) => {
            Record::Resized { name: read_name(&name)?, permits: read_permits(permits)? }
        }
        r::Kind::Reply(reply) => read_reply_record(reply)?,
        r::Kind::Entry(pb::KeyEntry { key, entry }) => {
            let entry = entry.ok_or(Malformed("a key without an entry"))?;
            Record::Entry { key: read_key(&key)?, entry: read_entry(&entry)? }
        }
        r::Kind::ClosedUntilMs(until) => Record::Closed { until: Stamp(until) },
        r::Kind::Compacted(revision) => Record::Compacted { revision: Revision(revision) },
        r::Kind::EntryEvent(pb::EntryEvent { revision, key, before, after: _ }) => Record::EntryEvent {
            revision: Revision(revision),
            key: read_key(&key)?,
            before: before.as_ref().map(read_entry).transpose()?,
        },
        r::Kind::Work(work) => Record::Work(read_work(work.kind.ok_or(Malformed("work of an unknown kind"))?)?),
    })
}

fn read_session_record(session: r::Session) -> Result<Record, Malformed> {
    Ok(Record::Session {
        session: read_session(&session.session)?,
        label: read_label(&session.label),
        ttl: read_ttl(session.ttl_ms)?,
        deadline: Stamp(session.deadline_ms),
        opened: WallTime(session.opened_wall_ms),
        address: read_address(&session.address)?,
        open: read_open(session.lowest, session.kept)?,
        owner: read_identity(&session.owner)?,
        is_of_entries: session.of_entries,
        is_temporary: session.temporary,
        attached: session.attached,
    })
}

fn read_reply_record(reply: r::Reply) -> Result<Record, Malformed> {
    let session = read_session(&reply.session)?;
    let asked = reply.asked.and_then(|asked| asked.kind).ok_or(Malformed("a remembered reply without its request"))?;
    let answer = reply.answer.and_then(|answer| answer.kind).ok_or(Malformed("a reply without an answer"))?;

    let asked = read_asked(asked)?;
    let reply_to_it = read_answer(session, answer)?;
    Ok(Record::Reply { session, request: reply.request, asked, reply: reply_to_it })
}

fn write_work(work: &Work) -> r::work::Kind {
    match work {
        Work::EndSession { session, end, at } => r::work::Kind::EndSession(r::EndSession {
            session: write_session(*session),
            end: write_end(*end).into(),
            at_ms: at.0,
        }),
        Work::HandOn { name } => r::work::Kind::HandOn(name.as_str().into()),
    }
}

fn read_work(work: r::work::Kind) -> Result<Work, Malformed> {
    Ok(match work {
        r::work::Kind::EndSession(ending) => Work::EndSession {
            session: read_session(&ending.session)?,
            end: read_end(ending.end())?,
            at: Stamp(ending.at_ms),
        },
        r::work::Kind::HandOn(name) => Work::HandOn { name: read_name(&name)? },
    })
}

fn write_held(name: &LockName, mode: Mode) -> r::HeldLock {
    r::HeldLock { name: write_name(name), mode: Some(write_mode(mode)) }
}

fn read_held(lock: r::HeldLock) -> Result<(LockName, Mode), Malformed> {
    Ok((read_name(&lock.name)?, read_mode(lock.mode)?))
}

fn write_end(end: SessionEnd) -> r::End {
    match end {
        SessionEnd::Closed => r::End::Closed,
        SessionEnd::Expired => r::End::Expired,
        SessionEnd::Unknown => r::End::Unspecified,
    }
}

fn read_end(end: r::End) -> Result<SessionEnd, Malformed> {
    match end {
        r::End::Closed => Ok(SessionEnd::Closed),
        r::End::Expired => Ok(SessionEnd::Expired),
        r::End::Unspecified => Err(Malformed("an ended session without how it ended")),
    }
}

fn write_asked(asked: &RememberedRequest) -> r::asked::Kind {
    use r::asked::Kind;
    match asked {
        RememberedRequest::Acquire(names) => Kind::Acquire(r::Names { names: write_names(names) }),
        RememberedRequest::Release(Target::Grant(token)) => Kind::ReleaseToken(token.0),
        RememberedRequest::Release(Target::Acquire(id)) => Kind::ReleaseAcquire(*id),
        RememberedRequest::Update(token, name) => {
            Kind::Update(r::UpdateOf { token: token.0, name: name.as_str().into() })
        }
        RememberedRequest::Abandoned => Kind::Abandoned(true),
    }
}

fn read_asked(asked: r::asked::Kind) -> Result<RememberedRequest, Malformed> {
    use r::asked::Kind;
    Ok(match asked {
        Kind::Acquire(acquire) => RememberedRequest::Acquire(read_names(&acquire.names)?),
        Kind::ReleaseToken(token) => RememberedRequest::Release(Target::Grant(Token(token))),
        Kind::ReleaseAcquire(id) => RememberedRequest::Release(Target::Acquire(id)),
        Kind::Update(update) => RememberedRequest::Update(Token(update.token), read_name(&update.name)?),
        Kind::Abandoned(_) => RememberedRequest::Abandoned,
    })
}

/// `None` for replies that are never remembered.
fn write_answer(reply: &Reply) -> Option<r::answer::Kind> {
    use r::answer::Kind;

    Some(match reply.to_session()? {
        SessionReply::Queued(ticket) => Kind::Queued(ticket.0),
        SessionReply::Acquired(WaitEnd::Granted(grant)) => {
            Kind::Granted(r::Granted { token: grant.token.0, names: write_names(&grant.names) })
        }
        SessionReply::Acquired(WaitEnd::TimedOut(busy)) => Kind::TimedOut(write_busy(busy)),
        SessionReply::Acquired(WaitEnd::Cancelled) => Kind::Cancelled(true),
        SessionReply::Acquired(WaitEnd::Abandoned) => Kind::WaitAbandoned(true),
        SessionReply::Acquired(WaitEnd::Removed) => Kind::WaitRemoved(true),
        SessionReply::Busy(busy) => Kind::Busy(write_busy(busy)),
        SessionReply::Released(found) => Kind::Released(write_found(found).into()),
        SessionReply::Updated => Kind::Updated(true),
        SessionReply::Refused(refusal) => Kind::Refused(r::Refusal { kind: Some(write_refusal(refusal)?) }),
        SessionReply::Acquired(WaitEnd::SessionEnded(_)) => return None,
    })
}

fn read_answer(session: SessionId, answer: r::answer::Kind) -> Result<Reply, Malformed> {
    use r::answer::Kind;

    Ok(match answer {
        Kind::Queued(ticket) => Reply::Queued(Ticket(ticket)),
        Kind::Granted(granted) => {
            let token = Token(granted.token);
            let names = read_names(&granted.names)?;
            Reply::Acquired(WaitEnd::Granted(Grant { token, session, names }))
        }
        Kind::TimedOut(busy) => Reply::Acquired(WaitEnd::TimedOut(read_busy(busy)?)),
        Kind::Cancelled(_) => Reply::Acquired(WaitEnd::Cancelled),
        Kind::WaitAbandoned(_) => Reply::Acquired(WaitEnd::Abandoned),
        Kind::WaitRemoved(_) => Reply::Acquired(WaitEnd::Removed),
        Kind::Busy(busy) => Reply::Busy(read_busy(busy)?),
        Kind::Released(found) => Reply::Released(read_found(found)?),
        Kind::Updated(_) => Reply::Updated,
        Kind::Refused(refusal) => {
            Reply::Refused(read_refusal(refusal.kind.ok_or(Malformed("a refusal without a reason"))?)?)
        }
    })
}

fn write_found(found: Released) -> r::Found {
    match found {
        Released::Grant => r::Found::Grant,
        Released::Wait => r::Found::Wait,
        Released::Nothing => r::Found::Nothing,
    }
}

fn read_found(found: i32) -> Result<Released, Malformed> {
    match r::Found::try_from(found) {
        Ok(r::Found::Grant) => Ok(Released::Grant),
        Ok(r::Found::Wait) => Ok(Released::Wait),
        Ok(r::Found::Nothing) => Ok(Released::Nothing),
        Ok(r::Found::Unspecified) | Err(_) => Err(Malformed("a release with an unknown result")),
    }
}

fn write_busy(busy: &Busy) -> r::Busy {
    let holder = |holder: &HolderView| r::Holder {
        token: holder.token.0,
        session: write_session(holder.session),
        label: holder.label.as_str().into(),
        mode: Some(write_mode(holder.mode)),
        since_wall_ms: holder.since.0,
        remaining_ms: holder.remaining_ms,
        revoked_reason: holder.revoked.as_ref().map(|reason| reason.as_str().into()).unwrap_or_default(),
    };

    r::Busy {
        name: busy.name.as_str().into(),
        holder: busy.holder.as_ref().map(holder),
        queue_length: busy.queue_length,
        delay_remaining_ms: busy.delay_remaining_ms,
    }
}

fn read_busy(busy: r::Busy) -> Result<Busy, Malformed> {
    Ok(Busy {
        name: read_name(&busy.name)?,
        holder: busy.holder.map(read_holder).transpose()?,
        queue_length: busy.queue_length,
        delay_remaining_ms: busy.delay_remaining_ms,
    })
}

fn read_holder(holder: r::Holder) -> Result<HolderView, Malformed> {
    Ok(HolderView {
        token: Token(holder.token),
        session: read_session(&holder.session)?,
        label: read_label(&holder.label),
        mode: read_mode(holder.mode)?,
        since: WallTime(holder.since_wall_ms),
        remaining_ms: holder.remaining_ms,
        revoked: match holder.revoked_reason.as_str() {
            "" => None,
            reason => Some(read_reason(reason)?),
        },
        origin: HolderOrigin::default(),
    })
}

/// `None` for refusals before a request runs, which are never remembered.
fn write_refusal(refusal: &Refusal) -> Option<r::refusal::Kind> {
    use r::refusal::Kind;

    Some(match refusal {
        Refusal::NotHeld => Kind::NotHeld(true),
        Refusal::Revoked { token, reason } => {
            Kind::Revoked(r::TakenGrant { token: token.0, reason: reason.as_str().into() })
        }
        Refusal::ModeMismatch { name, in_use } => {
            Kind::ModeMismatch(r::Mismatch { name: name.as_str().into(), permits: in_use.map(|permits| permits.get()) })
        }
        Refusal::LockUnknown { name } => Kind::LockUnknown(name.as_str().into()),
        Refusal::Abandoned => Kind::Abandoned(true),
        Refusal::RequestStale { lowest } => Kind::RequestStaleLowest(*lowest),
        Refusal::RequestReused => Kind::RequestReused(true),
        Refusal::Limit(limit) => Kind::Limit(write_limit(*limit).into()),
        Refusal::SessionEnded(_)
        | Refusal::SessionExists
        | Refusal::SessionMoved { .. }
        | Refusal::TxnFailed { .. }
        | Refusal::NotSemaphore { .. }
        | Refusal::Closed { .. }
        | Refusal::RevisionFuture { .. } => return None,
    })
}

fn read_refusal(refusal: r::refusal::Kind) -> Result<Refusal, Malformed> {
    use r::refusal::Kind;

    Ok(match refusal {
        Kind::NotHeld(_) => Refusal::NotHeld,
        Kind::Revoked(r::TakenGrant { token, reason }) => {
            Refusal::Revoked { token: Token(token), reason: read_reason(&reason)? }
        }
        Kind::ModeMismatch(mismatch) => Refusal::ModeMismatch {
            name: read_name(&mismatch.name)?,
            in_use: mismatch.permits.map(read_permits).transpose()?,
        },
        Kind::LockUnknown(name) => Refusal::LockUnknown { name: read_name(&name)? },
        Kind::Abandoned(_) => Refusal::Abandoned,
        Kind::RequestStaleLowest(lowest) => Refusal::RequestStale { lowest },
        Kind::RequestReused(_) => Refusal::RequestReused,
        Kind::Limit(limit) => Refusal::Limit(read_limit(limit)?),
    })
}

fn write_limit(limit: Limit) -> r::Limit {
    match limit {
        // Limits of commands whose replies are never stored.
        Limit::Sessions
        | Limit::Entries
        | Limit::TemporaryEntries
        | Limit::TxnWrites
        | Limit::TxnReads
        | Limit::TxnBytes => r::Limit::Unspecified,
        Limit::Waiters => r::Limit::Waiters,
        Limit::Locks => r::Limit::Locks,
        Limit::RepliesPerSession => r::Limit::RepliesPerSession,
        Limit::TakenPerSession => r::Limit::TakenPerSession,
        Limit::GrantsPerSession => r::Limit::GrantsPerSession,
        Limit::TableBytes => r::Limit::TableBytes,
        Limit::SessionBytes => r::Limit::SessionBytes,
        Limit::WaitsPerSession => r::Limit::WaitsPerSession,
    }
}

fn read_limit(limit: i32) -> Result<Limit, Malformed> {
    match r::Limit::try_from(limit) {
        Ok(r::Limit::Waiters) => Ok(Limit::Waiters),
        Ok(r::Limit::Locks) => Ok(Limit::Locks),
        Ok(r::Limit::RepliesPerSession) => Ok(Limit::RepliesPerSession),
        Ok(r::Limit::TakenPerSession) => Ok(Limit::TakenPerSession),
        Ok(r::Limit::GrantsPerSession) => Ok(Limit::GrantsPerSession),
        Ok(r::Limit::TableBytes) => Ok(Limit::TableBytes),
        Ok(r::Limit::SessionBytes) => Ok(Limit::SessionBytes),
        Ok(r::Limit::WaitsPerSession) => Ok(Limit::WaitsPerSession),
        Ok(r::Limit::Unspecified) | Err(_) => Err(Malformed("an unknown limit")),
    }
}

#[cfg(test)]
mod tests;
