//! The payload of the log's entries: commands that were proposed together, and their time, as one [`pb::Batch`].

use bytes::Bytes;
use prost::Message;

use super::{
    Malformed,
    fields::MessageFields,
    session_commands::{
        ACQUIRE, RELEASE, decode_acquire, decode_release, encode_acquire, encode_release, read_acquire, read_release,
    },
    transactions::{self, TXN, decode_txn, read_txn},
    values::*,
};
use crate::messages as pb;
use lockkeeper_machine::*;

/// The payload of one log entry.
pub fn encode(time: Time, limits: Limits, commands: &[Command]) -> Bytes {
    encode_batch(time, limits, commands.iter().map(encode_command).collect())
}

/// One command of a batch. Its caller's task encodes it, so that the thread of Raft only copies bytes.
pub fn encode_command(command: &Command) -> Bytes {
    use pb::command::Kind;
    let kind = match command {
        Command::Txn(txn) => return transactions::encode_command(txn),
        Command::Open { session, ttl, label, address, owner } => Kind::Open(pb::Open {
            session: write_session(*session),
            ttl_ms: ttl.as_millis(),
            label: label.as_str().into(),
            address: write_address(*address),
            owner: write_identity(owner.as_ref()),
        }),
        Command::Renew { sessions } => {
            Kind::Renew(pb::Renew { sessions: sessions.iter().copied().map(write_session).collect() })
        }
        Command::Attach { session } => Kind::Attach(pb::Attach { session: write_session(*session) }),
        Command::SetOwner { session, owner } => {
            Kind::SetOwner(pb::SetOwner { session: write_session(*session), owner: owner.as_str().into() })
        }
        Command::Close { session, by, reason } => Kind::Close(pb::Close {
            session: write_session(*session),
            by: write_identity(by.as_ref()),
            reason: reason.as_ref().map_or_else(String::new, |reason| reason.as_str().into()),
        }),

        Command::Session { session, request, operation } => {
            let request = request.as_ref();
            match operation {
                Operation::Acquire(acquire) => return encode_acquire(*session, request, acquire),
                Operation::Release(target) => return encode_release(*session, request, target),
                Operation::Update(update) => Kind::Update(write_update(*session, request, update)),
            }
        }

        // What operators ask for.
        Command::CancelWait { ticket, repeats } => {
            Kind::CancelWait(pb::CancelWait { ticket: ticket.0, repeats: *repeats })
        }
        Command::ForceRelease(force) => Kind::ForceRelease(write_force_release(force)),
        Command::RemoveWaiter { name, ticket, by } => Kind::RemoveWaiter(pb::RemoveWaiter {
            name: name.as_str().into(),
            ticket: ticket.0,
            by: write_identity(by.as_ref()),
        }),
        Command::LiftDelay { name, by } => {
            Kind::LiftDelay(pb::LiftDelay { name: name.as_str().into(), by: write_identity(by.as_ref()) })
        }
        Command::DropData { prefix, after, by } => Kind::DropData(pb::DropData {
            prefix: prefix.clone(),
            after: after.as_ref().map(|name| name.as_str().into()),
            by: write_identity(by.as_ref()),
        }),
        Command::Resize { name, permits, by } => Kind::Resize(pb::Resize {
            name: name.as_str().into(),
            permits: permits.get(),
            by: write_identity(by.as_ref()),
        }),

        // The keyspace.
        Command::Compact { revision } => Kind::Compact(pb::Compaction { revision: revision.0 }),

        Command::Tick => Kind::Tick(pb::Tick {}),
        Command::RaiseVersion { to } => Kind::RaiseVersion(pb::RaiseVersion { to: to.0 }),
        Command::Note(Note { who, act, target, reason, omitted }) => Kind::Note(pb::Note {
            who: who.clone(),
            act: act.clone(),
            target: target.clone(),
            reason: reason.clone(),
            omitted: *omitted,
        }),
        Command::BeginAudit => Kind::BeginAudit(pb::BeginAudit {}),
        Command::Probe => Kind::Probe(pb::Probe {}),
    };

    pb::Command { kind: Some(kind) }.encode_to_vec().into()
}

/// Decodes what [`encode_command`] wrote.
pub fn decode_command(bytes: Bytes) -> Result<Command, Malformed> {
    // A command has one field. What has more was not written here, and is left to the message's own rules.
    let mut fields = MessageFields::new(&bytes);
    match (fields.next(), fields.next()) {
        (Some(Ok((ACQUIRE, message))), None) => return decode_acquire(message.bytes()?),
        (Some(Ok((RELEASE, message))), None) => return decode_release(message.bytes()?),
        (Some(Ok((TXN, message))), None) => return decode_txn(message.bytes()?).map(Command::Txn),
        _ => {}
    }
    let command = pb::Command::decode(bytes).map_err(|_| Malformed("a command that cannot be decoded"))?;
    read_command(command)
}

/// The payload of one log entry with these commands, each by [`encode_command`].
pub fn encode_batch(time: Time, limits: Limits, commands: Vec<Bytes>) -> Bytes {
    let batch =
        pb::Batch { stamp_ms: time.stamp.0, wall_ms: time.wall.0, commands, limits: Some(write_limits(limits)) };
    batch.encode_to_vec().into()
}

/// Decodes what [`encode`] wrote. Fails on anything else: the log is damaged, or was written by a newer version. Checks no limit, but for
/// those that the batch names: a command beyond a limit of this version was within those of the version that proposed it.
///
/// A batch without limits was written by a version that had none, and keeps its meaning: [`Limits::NONE`].
pub fn decode(bytes: &Bytes) -> Result<(Time, Limits, Vec<Command>), Malformed> {
    let batch = pb::Batch::decode(bytes.clone()).map_err(|_| Malformed("a batch that cannot be decoded"))?;
    let time = Time { stamp: Stamp(batch.stamp_ms), wall: WallTime(batch.wall_ms) };
    let limits = batch.limits.map_or(Limits::NONE, read_limits);

    let mut commands = Vec::with_capacity(batch.commands.len());
    for command in batch.commands {
        commands.push(decode_command(command)?);
    }
    Ok((time, limits, commands))
}

fn write_limits(limits: Limits) -> pb::Limits {
    let Limits { work, grants_per_session, table_bytes, session_bytes } = limits;
    let written = |limit: usize| (limit != usize::MAX).then_some(limit as u64);
    pb::Limits {
        work: written(work),
        grants_per_session: written(grants_per_session),
        table_bytes: written(table_bytes),
        session_bytes: written(session_bytes),
    }
}

fn read_limits(limits: pb::Limits) -> Limits {
    let read = |limit: Option<u64>| limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    Limits {
        // With 0 the backlog would never shrink.
        work: read(limits.work).max(1),
        grants_per_session: read(limits.grants_per_session),
        table_bytes: read(limits.table_bytes),
        session_bytes: read(limits.session_bytes),
    }
}

fn write_force_release(force: &ForceRelease) -> pb::ForceRelease {
    let ForceRelease { name, token, after, up_to, reason, now, by } = force;
    pb::ForceRelease {
        name: name.as_str().into(),
        token: token.map(|token| token.0),
        reason: reason.as_str().into(),
        now: *now,
        after: after.0,
        up_to: up_to.map(|token| token.0),
        by: write_identity(by.as_ref()),
    }
}

fn write_update(session: SessionId, request: Option<&Request>, update: &Update) -> pb::Update {
    pb::Update {
        session: write_session(session),
        request: request.map(write_request),
        token: update.token.0,
        name: write_name(&update.name),
        data: write_data(update.data.as_ref()),
        keep_data: update.keep_data,
    }
}

fn read_command(command: pb::Command) -> Result<Command, Malformed> {
    use pb::command::Kind;
    Ok(match command.kind.ok_or(Malformed("a command of an unknown kind"))? {
        Kind::Open(open) => Command::Open {
            session: read_session(&open.session)?,
            ttl: read_ttl(open.ttl_ms)?,
            label: read_label(&open.label),
            address: read_address(&open.address)?,
            owner: read_identity(&open.owner)?,
        },
        Kind::Renew(renew) => {
            Command::Renew { sessions: renew.sessions.iter().map(read_session).collect::<Result<_, _>>()? }
        }
        Kind::Attach(pb::Attach { session }) => Command::Attach { session: read_session(&session)? },
        Kind::SetOwner(pb::SetOwner { session, owner }) => {
            let owner = read_identity(&owner)?.ok_or(Malformed("a session for no owner"))?;
            Command::SetOwner { session: read_session(&session)?, owner }
        }
        Kind::Close(pb::Close { session, by, reason }) => Command::Close {
            session: read_session(&session)?,
            by: read_identity(&by)?,
            reason: (!reason.is_empty()).then(|| read_reason(&reason)).transpose()?,
        },

        Kind::Acquire(acquire) => read_acquire(&acquire)?,
        Kind::Release(release) => read_release(&release)?,
        Kind::Update(update) => {
            let operation = Operation::Update(Update {
                token: Token(update.token),
                name: read_name(&update.name)?,
                data: read_data(update.data),
                keep_data: update.keep_data,
            });
            session_command(&update.session, update.request, operation)?
        }

        Kind::CancelWait(cancel) => Command::CancelWait { ticket: Ticket(cancel.ticket), repeats: cancel.repeats },
        Kind::ForceRelease(force) => Command::ForceRelease(ForceRelease {
            name: read_name(&force.name)?,
            token: force.token.map(Token),
            after: Token(force.after),
            up_to: force.up_to.map(Token),
            reason: read_reason(&force.reason)?,
            now: force.now,
            by: read_identity(&force.by)?,
        }),
        Kind::RemoveWaiter(pb::RemoveWaiter { name, ticket, by }) => {
            Command::RemoveWaiter { name: read_name(&name)?, ticket: Ticket(ticket), by: read_identity(&by)? }
        }
        Kind::LiftDelay(lift) => Command::LiftDelay { name: read_name(&lift.name)?, by: read_identity(&lift.by)? },
        Kind::DropData(pb::DropData { prefix, after, by }) => {
            let after = after.map(|name| read_name(&name)).transpose()?;
            Command::DropData { prefix, after, by: read_identity(&by)? }
        }
        Kind::Resize(pb::Resize { name, permits, by }) => {
            Command::Resize { name: read_name(&name)?, permits: read_permits(permits)?, by: read_identity(&by)? }
        }

        Kind::Txn(txn) => Command::Txn(read_txn(&txn)?),
        Kind::Compact(pb::Compaction { revision }) => Command::Compact { revision: Revision(revision) },

        Kind::Tick(pb::Tick {}) => Command::Tick,
        Kind::RaiseVersion(pb::RaiseVersion { to }) => Command::RaiseVersion { to: Version(to) },
        Kind::Note(pb::Note { who, act, target, reason, omitted }) => {
            Command::Note(Note { who, act, target, reason, omitted })
        }
        Kind::BeginAudit(pb::BeginAudit {}) => Command::BeginAudit,
        Kind::Probe(pb::Probe {}) => Command::Probe,
    })
}

fn session_command(session: &Bytes, request: Option<pb::Request>, operation: Operation) -> Result<Command, Malformed> {
    let request = request.map(read_request).transpose()?;
    Ok(Command::Session { session: read_session(session)?, request, operation })
}

fn write_request(request: &Request) -> pb::Request {
    let Request { id, open } = request;
    pb::Request { id: *id, lowest: open.lowest(), kept: open.kept().to_vec() }
}

fn read_request(request: pb::Request) -> Result<Request, Malformed> {
    Ok(Request { id: request.id, open: read_open(request.lowest, request.kept)? })
}

#[cfg(test)]
mod tests;
