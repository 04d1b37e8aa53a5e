//! The audit trail: its lines are made here, from what an applied entry did.
//!
//! The lines are a function of the log alone, so all nodes make the same; the head of their chain is part of the applied state. The trail
//! begins with [`Command::BeginAudit`], which the leader proposes once a member writes its lines to files. Until then there are none: a
//! line and its hash cost each node as much as the command itself.

use lockkeeper_audit::{AuditEvent, AuditLine, ChainPlace, Head, Session, Sink};
use lockkeeper_planted::Planted;

use crate::AppliedMembership;
use lockkeeper_machine::*;

/// How far the trail goes. Part of the applied state, and of snapshots and backups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trail {
    head: Head,
    /// The table was restored from a backup, and `head` is that of the backup: the next line begins a trail of the new cluster.
    is_restored: bool,
}

/// The receiver of a node's lines, and the hash that they begin with.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// The chain before its first line.
    genesis: Head,
    /// The files, or `None` if this node writes none.
    sink: Option<Sink>,
}

impl Trail {
    /// The last line and its hash. Without lines: zeros.
    pub fn head(&self) -> Head {
        if self.is_restored { Head::default() } else { self.head }
    }

    /// Whether there are lines, or the next entry begins them.
    pub fn has_begun(&self) -> bool {
        self.head.lines > 0
    }

    /// The trail of a cluster that is restored from a copy with this trail.
    pub fn restored(self) -> Self {
        Self { is_restored: self.has_begun(), ..self }
    }

    /// The trail of a snapshot or a backup: the last line and its hash there, and whether the table was restored since.
    pub fn from_stored(head: Head, is_restored: bool) -> Self {
        Self { head, is_restored }
    }

    /// What a snapshot or a backup says of it. `None` before the first line.
    pub fn to_stored(self) -> Option<(Head, bool)> {
        (self != Self::default()).then_some((self.head, self.is_restored))
    }
}

impl Audit {
    /// Makes the audit trail of a node of this cluster.
    pub fn new(cluster_id: &str, sink: Option<Sink>) -> Self {
        Self { genesis: Head::genesis(cluster_id), sink }
    }

    /// The files of this node.
    pub fn sink(&self) -> Option<&Sink> {
        self.sink.as_ref()
    }

    /// Begins the lines of an entry. An entry without commands has no `wall` time.
    pub(super) fn entry(
        &self,
        trail: Trail,
        index: u64,
        stamp: Stamp,
        wall: Option<WallTime>,
        machine: &Machine,
    ) -> EntryLines {
        // The tokens and tickets before the entry: whoever verifies the lines of this entry goes on counting from there, also if the file
        // begins here.
        let place = ChainPlace {
            before: trail.head(),
            after: trail.head(),
            token: machine.last_token().0,
            ticket: machine.last_ticket().0,
        };

        let wall_ms = wall.map(|wall| wall.0);
        EntryLines { genesis: self.genesis, trail, place, index, stamp_ms: stamp.0, wall_ms, text: Vec::new() }
    }

    /// Hands the lines of an entry over. May wait for the disk.
    pub(super) fn write(&self, entry: EntryLines) {
        if let Some(sink) = self.sink.as_ref().filter(|_| !entry.text.is_empty()) {
            sink.push(ChainPlace { after: entry.trail.head, ..entry.place }, entry.text);
        }
    }
}

/// The lines of one entry.
pub(super) struct EntryLines {
    genesis: Head,
    trail: Trail,
    place: ChainPlace,
    index: u64,
    stamp_ms: u64,
    wall_ms: Option<u64>,
    text: Vec<u8>,
}

impl EntryLines {
    pub(super) fn trail(&self) -> Trail {
        self.trail
    }

    fn push(&mut self, line: AuditLine<'_>) {
        let line = AuditLine { index: self.index, stamp_ms: self.stamp_ms, wall_ms: self.wall_ms, ..line };
        self.trail.head.push(line, &mut self.text);
    }

    /// Whether lines are made.
    pub(super) fn is_on(&self) -> bool {
        self.trail.has_begun()
    }

    /// The first line of all: what has no lines, since it was there before.
    fn begin(&mut self, machine: &Machine) {
        let Trail { head: copied, is_restored } = self.trail;
        self.trail = Trail { head: self.genesis, is_restored: false };
        self.place.before = self.genesis;

        let (what, reason) = if is_restored {
            (
                AuditEvent::Restored,
                Some(format!("from a copy whose trail has {} lines, hash {}", copied.lines, copied.hash).into()),
            )
        } else {
            (AuditEvent::Begun, None)
        };

        let token = Some(machine.last_token().0);
        let ticket = Some(machine.last_ticket().0);
        let count = Some(machine.counts().sessions as u64);
        self.push(AuditLine { token, ticket, count, reason, ..AuditLine::new(what) });
    }

    /// Runs before the entry changes anything: the first line of a restored cluster's trail counts the state that has no lines.
    pub(super) fn start(&mut self, machine: &Machine) {
        if self.trail.is_restored {
            self.begin(machine);
        }
    }

    /// The work that was due before the commands.
    pub(super) fn due(&mut self, events: &[Event]) {
        if self.is_on() {
            self.events(events, &Operator::default());
        }
    }

    /// A command, and what it caused.
    pub(super) fn command(&mut self, act: AuditAct, reply: &Reply, machine: &Machine, events: &[Event]) {
        match act {
            // A leader that has not applied its predecessor's command yet may propose a second one: the first counts.
            AuditAct::Begin if !self.is_on() => return self.begin(machine),
            _ if !self.is_on() => return,
            // Its own lines follow from its events; only the end of the session says who wanted it.
            AuditAct::Close(operator) => return self.events(events, &operator),
            AuditAct::None | AuditAct::Begin => {}
            AuditAct::Line(line) => {
                if let Some(line) = act_line(*line, reply) {
                    self.push(line);
                }
            }
            AuditAct::Txn([then, otherwise]) => {
                if let Reply::Committed(Committed { succeeded, .. }) = reply {
                    // Both were made before the transaction ran, as the table was then. Which of the two happened is known only from its
                    // reply.
                    let lines = if *succeeded { then } else { otherwise };
                    lines.into_iter().for_each(|line| self.push(line));
                }
            }
        }

        self.events(events, &Operator::default());
    }

    /// The `operator` ended the session, if one is named.
    fn events(&mut self, events: &[Event], operator: &Operator) {
        for (at, event) in events.iter().enumerate() {
            match event {
                Event::SessionEnded { session, end } => {
                    let how = Some(end_of_session(*end).into());
                    let by = operator.by.as_deref();
                    let reason = operator.reason.as_deref();
                    let by = by.map(Into::into);
                    let reason = reason.map(Into::into);
                    let line = AuditLine { how, by, reason, ..AuditLine::new(AuditEvent::SessionEnded) };
                    self.push(for_session(line, *session));
                }
                Event::Changed(change) => self.change(change, &events[at..]),
                // The changes of the locks tell the same.
                Event::WaitEnded { .. } | Event::Revoked { .. } => {}
            }
        }
    }

    fn change(&mut self, Change { name, of, kind }: &Change, rest: &[Event]) {
        let of_entry = *of == LockKind::Entry;
        let kind_of_lock = || of_entry.then(|| "entry".into());
        let line = |what| AuditLine { lock: Some(name.as_str().into()), kind: kind_of_lock(), ..AuditLine::new(what) };
        // An entry that waits has its token already.
        let place = |ticket: &Ticket, line| {
            if of_entry {
                AuditLine { token: Some(ticket.0), ..line }
            } else {
                AuditLine { ticket: Some(ticket.0), ..line }
            }
        };
        let label = |label: &Label| Some(label.as_str().to_owned()).filter(|label| !label.is_empty()).map(Into::into);

        let line = match kind {
            ChangeKind::Granted { token, session, label: of, mode, ticket } => {
                let token = Some(token.0);
                let ticket = ticket.filter(|_| !of_entry).map(|ticket| ticket.0);
                for_session(
                    in_mode(AuditLine { token, ticket, label: label(of), ..line(AuditEvent::Granted) }, *mode),
                    *session,
                )
            }

            ChangeKind::Queued { ticket, session, label: of, mode } => {
                let queued = AuditLine { label: label(of), ..line(AuditEvent::Queued) };
                for_session(in_mode(place(ticket, queued), *mode), *session)
            }
            ChangeKind::Left { ticket, session } => {
                // The end of the wait comes after the changes of all its locks, so it is looked for behind this one.
                let how = rest.iter().find_map(|event| {
                    let Event::WaitEnded { ticket: ended, end } = event else { return None };
                    (ended == ticket).then(|| end_of_wait(end).into())
                });
                for_session(place(ticket, AuditLine { how, ..line(AuditEvent::Left) }), *session)
            }

            ChangeKind::Released { token, session, .. } => {
                for_session(AuditLine { token: Some(token.0), ..line(AuditEvent::Released) }, *session)
            }
            ChangeKind::Lost { token, session, reason, by, .. } => {
                let how = if reason.is_some() { "forced" } else { "expired" };
                let reason = reason.as_ref().map(|reason| reason.as_str().into());
                for_session(
                    AuditLine {
                        token: Some(token.0),
                        how: Some(how.into()),
                        reason,
                        by: name_of(by.as_ref().filter(|_| !Planted::AuditForgetsWho.is_on())),
                        ..line(AuditEvent::Lost)
                    },
                    *session,
                )
            }
            ChangeKind::Revoked { token, session, reason, by } => {
                let reason = Some(reason.as_str().into());
                for_session(
                    AuditLine { token: Some(token.0), reason, by: name_of(by.as_ref()), ..line(AuditEvent::Revoked) },
                    *session,
                )
            }

            // Data may be secret, and does not decide who holds a lock. Delays follow from the grants that were lost. An operator's act has
            // its own line.
            ChangeKind::Data(_) | ChangeKind::Delayed | ChangeKind::Opened | ChangeKind::Resized(_) => return,
        };
        self.push(line);
    }

    /// A membership that follows another one.
    pub(super) fn membership(&mut self, machine: &Machine, before: &AppliedMembership, after: &AppliedMembership) {
        self.start(machine);
        if !self.is_on() {
            return;
        }

        let role = |membership: &AppliedMembership, id: u64| if membership.is_voter(id) { "voter" } else { "learner" };
        for (id, node) in &after.nodes {
            let is_same = before.nodes.get(id) == Some(node) && role(before, *id) == role(after, *id);
            if !is_same {
                let how = Some(role(after, *id).into());
                let address = Some(node.peer_address.clone().into());
                self.push(AuditLine { node: Some(*id), how, address, ..AuditLine::new(AuditEvent::MemberChanged) });
            }
        }

        for id in before.nodes.keys().filter(|id| !after.nodes.contains_key(id)) {
            self.push(AuditLine { node: Some(*id), ..AuditLine::new(AuditEvent::MemberRemoved) });
        }
    }
}

/// What a line says of a command: taken from it before it is applied.
pub(super) enum AuditAct {
    /// Its events say everything.
    None,
    /// It begins the trail, unless it has begun.
    Begin,
    /// The session's end is by this operator.
    Close(Operator),
    /// A line, if the command was not refused.
    Line(Box<AuditLine<'static>>),
    /// A transaction: the lines of each of its branches.
    Txn([Vec<AuditLine<'static>>; 2]),
}

/// Who closes a session, and why. Empty: its client does.
#[derive(Default)]
pub(super) struct Operator {
    by: Option<String>,
    reason: Option<String>,
}

impl Operator {
    fn new(by: Option<&Identity>, reason: Option<&Reason>) -> Self {
        let by = by.map(|by| by.as_str().to_owned());
        Self { by, reason: reason.map(|reason| reason.as_str().to_owned()) }
    }
}

impl AuditAct {
    pub(super) fn from_command(machine: &Machine, command: &Command, lines: &EntryLines) -> Self {
        if let Command::BeginAudit = command {
            return Self::Begin;
        }
        if !lines.is_on() {
            return Self::None;
        }

        let of_lock =
            |what, name: &LockName| AuditLine { lock: Some(name.as_str().to_owned().into()), ..AuditLine::new(what) };
        let line = match command {
            // A repeat only renews.
            Command::Open { session, .. } if machine.has_session(*session) => return Self::None,
            Command::SetOwner { session, owner } => return owner_act(machine, *session, owner),
            Command::Close { by, reason, .. } => return Self::Close(Operator::new(by.as_ref(), reason.as_ref())),
            Command::Open { session, ttl, label, address, owner } => {
                opened_line(*session, *ttl, label, *address, owner.as_ref())
            }
            Command::Txn(txn) => return Self::Txn(txn.opens().map(|opens| opened_lines(machine, opens))),
            Command::ForceRelease(force) => {
                let ForceRelease { name, token, reason, now, by, .. } = force;
                let reason = Some(reason.as_str().to_owned().into());
                let how = Some(if *now { "now" } else { "when the holder's session would end" }.into());
                AuditLine {
                    token: token.map(|token| token.0),
                    reason,
                    how,
                    by: name_of(by.as_ref()),
                    ..of_lock(AuditEvent::ForcedRelease, name)
                }
            }

            Command::RemoveWaiter { name, ticket, by } => AuditLine {
                ticket: Some(ticket.0),
                by: name_of(by.as_ref()),
                ..of_lock(AuditEvent::WaiterRemoved, name)
            },
            Command::LiftDelay { name, by } => {
                AuditLine { by: name_of(by.as_ref()), ..of_lock(AuditEvent::DelayLifted, name) }
            }
            Command::DropData { prefix, by, .. } => {
                let target = prefix.get(..prefix.floor_char_boundary(NAME_BYTES_MAX)).unwrap_or_default();
                AuditLine {
                    target: Some(target.to_owned().into()),
                    by: name_of(by.as_ref()),
                    ..AuditLine::new(AuditEvent::DataDropped)
                }
            }
            Command::Resize { name, permits, by } => AuditLine {
                permits: Some(permits.get()),
                by: name_of(by.as_ref()),
                ..of_lock(AuditEvent::Resized, name)
            },

            Command::RaiseVersion { to } if *to > machine.version() => {
                AuditLine { version: Some(to.0), ..AuditLine::new(AuditEvent::VersionRaised) }
            }
            Command::Note(Note { who, act, target, reason, omitted }) => {
                let said = |text: &String| Some(text.clone()).filter(|text| !text.is_empty()).map(Into::into);
                let by = who.clone().map(Into::into);
                let count = Some(*omitted).filter(|omitted| *omitted > 0);
                let act = said(act);
                let target = said(target);
                let reason = said(reason);
                AuditLine { by, act, target, reason, count, ..AuditLine::new(AuditEvent::Note) }
            }

            Command::RaiseVersion { .. }
            | Command::Renew { .. }
            | Command::Attach { .. }
            | Command::Session { .. }
            | Command::CancelWait { .. }
            | Command::Compact { .. }
            | Command::Tick
            | Command::BeginAudit
            | Command::Probe => return Self::None,
        };

        Self::Line(Box::new(line))
    }
}

/// The line of a session that gets its owner. A repeat has none.
fn owner_act(machine: &Machine, session: SessionId, owner: &Identity) -> AuditAct {
    if machine.owner(session) == Some(Some(owner)) {
        return AuditAct::None;
    }
    let line = AuditLine { owner: name_of(Some(owner)), ..AuditLine::new(AuditEvent::OwnerSet) };
    AuditAct::Line(Box::new(for_session(line, session)))
}

fn opened_line(
    session: SessionId,
    ttl: Ttl,
    label: &Label,
    address: Option<Address>,
    owner: Option<&Identity>,
) -> AuditLine<'static> {
    let label = Some(label.as_str().to_owned()).filter(|label| !label.is_empty()).map(Into::into);
    let address = address.map(|address| address.to_string().into());
    let owner = name_of(owner);
    let line =
        AuditLine { owner, label, address, ttl_ms: Some(ttl.as_millis()), ..AuditLine::new(AuditEvent::SessionOpened) };
    for_session(line, session)
}

/// The lines of the sessions that are opened, without those that are only renewed.
fn opened_lines<'a>(machine: &Machine, opens: impl Iterator<Item = &'a NewSession>) -> Vec<AuditLine<'static>> {
    let new = opens.filter(|new| !machine.has_session(new.session));
    new.map(|new| opened_line(new.session, new.ttl, &new.label, new.address, new.owner.as_ref())).collect()
}

/// An act's line with what the reply says, or `None` if it was refused.
fn act_line<'a>(line: AuditLine<'a>, reply: &Reply) -> Option<AuditLine<'a>> {
    let number = |reply: &Reply| {
        if let Reply::Forced { grants, .. } = reply {
            return Some(grants.len() as u64);
        }
        if let Reply::WaiterRemoved(waiter) = reply {
            return Some(waiter.is_some().into());
        }
        if let Reply::DelayLifted(delay) = reply {
            return Some(delay.is_some().into());
        }
        let Reply::DataDropped { dropped, .. } = reply else { return None };
        Some(*dropped)
    };
    if let Reply::Refused(_) = reply
        && !Planted::RefusedActAudited.is_on()
    {
        return None;
    }

    let count = number(reply).or(line.count);
    Some(AuditLine { count, ..line })
}

fn name_of(identity: Option<&Identity>) -> Option<std::borrow::Cow<'static, str>> {
    identity.map(|identity| identity.as_str().to_owned().into())
}

fn for_session(line: AuditLine<'_>, session: SessionId) -> AuditLine<'_> {
    AuditLine { session: Some(Session(session.0)), ..line }
}

fn in_mode(line: AuditLine<'_>, mode: Mode) -> AuditLine<'_> {
    let text = match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permit(_) => "permit",
    };
    AuditLine { mode: Some(text.into()), permits: mode.permits().map(Permits::get), ..line }
}

fn end_of_session(end: SessionEnd) -> &'static str {
    match end {
        SessionEnd::Closed => "closed",
        SessionEnd::Expired => "expired",
        SessionEnd::Unknown => "unknown",
    }
}

fn end_of_wait(end: &WaitEnd) -> &'static str {
    match end {
        WaitEnd::Granted(_) => "granted",
        WaitEnd::TimedOut(_) => "timed out",
        WaitEnd::Cancelled => "its call broke off",
        WaitEnd::Abandoned => "released by its client",
        WaitEnd::Removed => "removed by an operator",
        WaitEnd::SessionEnded(end) => match end {
            SessionEnd::Closed => "its session was closed",
            SessionEnd::Expired | SessionEnd::Unknown => "its session expired",
        },
    }
}

#[cfg(test)]
mod tests;
