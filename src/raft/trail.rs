//! The audit trail: its lines are made here, from what an applied entry did.
//!
//! The lines are a function of the log alone, so all nodes make the same; the head of their chain is part of the applied state. The trail
//! begins with [`Command::BeginAudit`], which the leader proposes once a member writes its lines to files. Until then there are none: a
//! line and its hash cost each node as much as the command itself.

use lockkeeper_audit::{Hash, Head, Line, Place, Session, Sink, What};

use super::{messages as pb, types::Membership};
use lockkeeper_machine::*;

/// How far the trail goes. Part of the applied state, and of snapshots and backups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trail {
    head: Head,
    /// The table was restored from a backup, and `head` is that of the backup: the next line begins a trail of the new cluster.
    is_restored: bool,
}

/// Where a node's lines go, and what they begin with.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// The chain before its first line.
    genesis: Head,
    /// The files. `None`: this node writes none.
    sink: Option<Sink>,
}

impl Trail {
    /// The last line and its hash. Without lines: zeros.
    pub fn head(&self) -> Head {
        match self.is_restored {
            true => Head::default(),
            false => self.head,
        }
    }

    /// Whether there are lines, or the next entry begins them.
    pub(super) fn has_begun(&self) -> bool {
        self.head.lines > 0
    }

    /// The trail of a cluster that is restored from a copy with this trail.
    pub fn restored(self) -> Self {
        Self { is_restored: self.has_begun(), ..self }
    }

    pub(super) fn to_message(self) -> Option<pb::AuditTrail> {
        let Self { head: Head { lines, hash }, is_restored: restored } = self;
        (self != Self::default()).then(|| pb::AuditTrail { lines, hash: hash.0.to_vec().into(), restored })
    }

    /// Of a snapshot or a backup. A hash of another length is that of no trail: it comes from a bug, and none of its lines can follow.
    pub(super) fn from_message(trail: Option<pb::AuditTrail>) -> Self {
        let Some(pb::AuditTrail { lines, hash, restored }) = trail else { return Self::default() };
        let hash = Hash(<[u8; 32]>::try_from(&*hash).unwrap_or_default());
        Self { head: Head { lines, hash }, is_restored: restored }
    }
}

impl Audit {
    /// Of a cluster.
    pub fn new(cluster_id: &str, sink: Option<Sink>) -> Self {
        Self { genesis: Head::genesis(cluster_id), sink }
    }

    /// The files of this node.
    pub fn sink(&self) -> Option<&Sink> {
        self.sink.as_ref()
    }

    /// Begins the lines of an entry. `wall`: `None` for an entry without commands.
    pub(super) fn entry(
        &self,
        trail: Trail,
        index: u64,
        stamp: Stamp,
        wall: Option<WallTime>,
        machine: &Machine,
    ) -> Entry {
        let place = Place {
            before: trail.head(),
            after: trail.head(),
            token: machine.last_token().0,
            ticket: machine.last_ticket().0,
        };
        let wall_ms = wall.map(|wall| wall.0);
        Entry { genesis: self.genesis, trail, place, index, stamp_ms: stamp.0, wall_ms, text: Vec::new() }
    }

    /// Hands the lines of an entry over. May wait for the disk.
    pub(super) fn write(&self, entry: Entry) {
        if let Some(sink) = self.sink.as_ref().filter(|_| !entry.text.is_empty()) {
            sink.push(Place { after: entry.trail.head, ..entry.place }, entry.text);
        }
    }
}

/// The lines of one entry.
pub(super) struct Entry {
    genesis: Head,
    trail: Trail,
    place: Place,
    index: u64,
    stamp_ms: u64,
    wall_ms: Option<u64>,
    text: Vec<u8>,
}

impl Entry {
    pub(super) fn trail(&self) -> Trail {
        self.trail
    }

    fn push(&mut self, line: Line<'_>) {
        let line = Line { index: self.index, stamp_ms: self.stamp_ms, wall_ms: self.wall_ms, ..line };
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
        let (what, reason) = match is_restored {
            true => (
                What::Restored,
                Some(format!("from a copy whose trail has {} lines, hash {}", copied.lines, copied.hash).into()),
            ),
            false => (What::Begun, None),
        };
        let (token, ticket) = (Some(machine.last_token().0), Some(machine.last_ticket().0));
        let count = Some(machine.counts().sessions as u64);
        self.push(Line { token, ticket, count, reason, ..Line::new(what) });
    }

    /// Before the entry changes anything: the first line of a restored cluster's trail counts what has no lines.
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
    pub(super) fn command(&mut self, act: Act, reply: &Reply, machine: &Machine, events: &[Event]) {
        match act {
            Act::Begin if !self.is_on() => return self.begin(machine),
            _ if !self.is_on() => return,
            Act::Close(operator) => return self.events(events, &operator),
            Act::None | Act::Begin => {}
            Act::Line(line) => _ = act_line(*line, reply).map(|line| self.push(line)),
            Act::Txn([then, otherwise]) => {
                if let Reply::Committed(Committed { succeeded, .. }) = reply {
                    let lines = if *succeeded { then } else { otherwise };
                    lines.into_iter().for_each(|line| self.push(line));
                }
            }
        }
        self.events(events, &Operator::default());
    }

    /// `operator`: who ended the session, if one is named.
    fn events(&mut self, events: &[Event], operator: &Operator) {
        for (at, event) in events.iter().enumerate() {
            match event {
                Event::SessionEnded { session, end } => {
                    let how = Some(end_of_session(*end).into());
                    let (by, reason) = (operator.by.as_deref(), operator.reason.as_deref());
                    let (by, reason) = (by.map(Into::into), reason.map(Into::into));
                    let line = Line { how, by, reason, ..Line::new(What::SessionEnded) };
                    self.push(of_session(line, *session));
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
        let line = |what| Line { lock: Some(name.as_str().into()), kind: kind_of_lock(), ..Line::new(what) };
        // An entry that waits has its token already.
        let place = |ticket: &Ticket, line| match of_entry {
            true => Line { token: Some(ticket.0), ..line },
            false => Line { ticket: Some(ticket.0), ..line },
        };
        let label = |label: &Label| Some(label.as_str().to_owned()).filter(|label| !label.is_empty()).map(Into::into);
        let line = match kind {
            ChangeKind::Granted { token, session, label: of, mode, ticket } => {
                let (token, ticket) = (Some(token.0), ticket.filter(|_| !of_entry).map(|ticket| ticket.0));
                of_session(in_mode(Line { token, ticket, label: label(of), ..line(What::Granted) }, *mode), *session)
            }
            ChangeKind::Queued { ticket, session, label: of, mode } => {
                let queued = Line { label: label(of), ..line(What::Queued) };
                of_session(in_mode(place(ticket, queued), *mode), *session)
            }
            ChangeKind::Left { ticket, session } => {
                let how = rest.iter().find_map(|event| {
                    let Event::WaitEnded { ticket: ended, end } = event else { return None };
                    (ended == ticket).then(|| end_of_wait(end).into())
                });
                of_session(place(ticket, Line { how, ..line(What::Left) }), *session)
            }
            ChangeKind::Released { token, session, .. } => {
                of_session(Line { token: Some(token.0), ..line(What::Released) }, *session)
            }
            ChangeKind::Lost { token, session, reason, by, .. } => {
                let how = if reason.is_some() { "forced" } else { "expired" };
                let reason = reason.as_ref().map(|reason| reason.as_str().into());
                of_session(
                    Line {
                        token: Some(token.0),
                        how: Some(how.into()),
                        reason,
                        by: name_of(by.as_ref()),
                        ..line(What::Lost)
                    },
                    *session,
                )
            }
            ChangeKind::Revoked { token, session, reason, by } => {
                let reason = Some(reason.as_str().into());
                of_session(
                    Line { token: Some(token.0), reason, by: name_of(by.as_ref()), ..line(What::Revoked) },
                    *session,
                )
            }
            // Data may be secret and is no matter of exclusion. Delays follow from the grants that were lost; an operator's act has a line.
            ChangeKind::Data(_) | ChangeKind::Delayed | ChangeKind::Opened | ChangeKind::Resized(_) => return,
        };
        self.push(line);
    }

    /// A membership that follows another one.
    pub(super) fn membership(&mut self, machine: &Machine, before: &Membership, after: &Membership) {
        self.start(machine);
        if !self.is_on() {
            return;
        }
        let role = |membership: &Membership, id: u64| match membership.voter_ids().any(|voter| voter == id) {
            true => "voter",
            false => "learner",
        };
        for (id, node) in after.nodes() {
            let is_same = before.get_node(id) == Some(node) && role(before, *id) == role(after, *id);
            if !is_same {
                let (how, address) = (Some(role(after, *id).into()), Some(node.peer_address.clone().into()));
                self.push(Line { node: Some(*id), how, address, ..Line::new(What::MemberChanged) });
            }
        }
        for (id, _) in before.nodes().filter(|(id, _)| after.get_node(id).is_none()) {
            self.push(Line { node: Some(*id), ..Line::new(What::MemberRemoved) });
        }
    }
}

/// What a line says of a command: taken from it before it is applied.
pub(super) enum Act {
    /// Its events say everything.
    None,
    /// It begins the trail, unless it has begun.
    Begin,
    /// The session's end is by this operator.
    Close(Operator),
    /// A line, if the command was not refused.
    Line(Box<Line<'static>>),
    /// A transaction: the lines of each of its branches.
    Txn([Vec<Line<'static>>; 2]),
}

/// Who closes a session, and why. Empty: its client does.
#[derive(Default)]
pub(super) struct Operator {
    by: Option<String>,
    reason: Option<String>,
}

impl Act {
    pub(super) fn of(machine: &Machine, command: &Command, lines: &Entry) -> Self {
        if let Command::BeginAudit = command {
            return Self::Begin;
        }
        if !lines.is_on() {
            return Self::None;
        }
        let of_lock = |what, name: &LockName| Line { lock: Some(name.as_str().to_owned().into()), ..Line::new(what) };
        let line = match command {
            // A repeat only renews.
            Command::Open { session, .. } if machine.has_session(*session) => return Self::None,
            Command::Close { by, reason, .. } => {
                let by = by.as_ref().map(|by| by.as_str().to_owned());
                return Self::Close(Operator { by, reason: reason.as_ref().map(|reason| reason.as_str().to_owned()) });
            }
            Command::Open { session, ttl, label, address, owner } => {
                opened_line(*session, *ttl, label, *address, owner.as_ref())
            }
            Command::Txn(txn) => return Self::Txn(txn.opens().map(|opens| opened_lines(machine, opens))),
            Command::ForceRelease(force) => {
                let ForceRelease { name, token, reason, now, by, .. } = force;
                let reason = Some(reason.as_str().to_owned().into());
                let how = Some(if *now { "now" } else { "when the holder's session would end" }.into());
                Line {
                    token: token.map(|token| token.0),
                    reason,
                    how,
                    by: name_of(by.as_ref()),
                    ..of_lock(What::ForcedRelease, name)
                }
            }
            Command::RemoveWaiter { name, ticket, by } => {
                Line { ticket: Some(ticket.0), by: name_of(by.as_ref()), ..of_lock(What::WaiterRemoved, name) }
            }
            Command::LiftDelay { name, by } => Line { by: name_of(by.as_ref()), ..of_lock(What::DelayLifted, name) },
            Command::DropData { prefix, by, .. } => {
                let target = prefix.get(..prefix.floor_char_boundary(NAME_BYTES_MAX)).unwrap_or_default();
                Line {
                    target: Some(target.to_owned().into()),
                    by: name_of(by.as_ref()),
                    ..Line::new(What::DataDropped)
                }
            }
            Command::Resize { name, permits, by } => {
                Line { permits: Some(permits.get()), by: name_of(by.as_ref()), ..of_lock(What::Resized, name) }
            }
            Command::RaiseVersion { to } if *to > machine.version() => {
                Line { version: Some(to.0), ..Line::new(What::VersionRaised) }
            }
            Command::Note(Note { who, act, target, reason, omitted }) => {
                let said = |text: &String| Some(text.clone()).filter(|text| !text.is_empty()).map(Into::into);
                let (by, count) = (who.clone().map(Into::into), Some(*omitted).filter(|omitted| *omitted > 0));
                let (act, target, reason) = (said(act), said(target), said(reason));
                Line { by, act, target, reason, count, ..Line::new(What::Note) }
            }
            Command::RaiseVersion { .. }
            | Command::Renew { .. }
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

fn opened_line(
    session: SessionId,
    ttl: Ttl,
    label: &Label,
    address: Option<Address>,
    owner: Option<&Identity>,
) -> Line<'static> {
    let label = Some(label.as_str().to_owned()).filter(|label| !label.is_empty()).map(Into::into);
    let address = address.map(|address| address.to_string().into());
    let owner = name_of(owner);
    let line = Line { owner, label, address, ttl_ms: Some(ttl.as_millis()), ..Line::new(What::SessionOpened) };
    of_session(line, session)
}

/// The lines of the sessions that are opened, without those that are only renewed.
fn opened_lines<'a>(machine: &Machine, opens: impl Iterator<Item = &'a NewSession>) -> Vec<Line<'static>> {
    let new = opens.filter(|new| !machine.has_session(new.session));
    new.map(|new| opened_line(new.session, new.ttl, &new.label, new.address, new.owner.as_ref())).collect()
}

/// An act's line with what the reply says; `None`: it was refused.
fn act_line<'a>(line: Line<'a>, reply: &Reply) -> Option<Line<'a>> {
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
    if let Reply::Refused(_) = reply {
        return None;
    }
    let count = number(reply).or(line.count);
    Some(Line { count, ..line })
}

fn name_of(identity: Option<&Identity>) -> Option<std::borrow::Cow<'static, str>> {
    identity.map(|identity| identity.as_str().to_owned().into())
}

fn of_session(line: Line<'_>, session: SessionId) -> Line<'_> {
    Line { session: Some(Session(session.0)), ..line }
}

fn in_mode(line: Line<'_>, mode: Mode) -> Line<'_> {
    let text = match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permit(_) => "permit",
    };
    Line { mode: Some(text.into()), permits: mode.permits().map(Permits::get), ..line }
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
mod tests {
    use std::sync::Arc;

    use lockkeeper_audit::{Rotation, files_in, verify};
    use tempfile::TempDir;

    use super::*;
    use crate::{
        table::{Applied, Batch, Table},
        types::{CommittedLeaderId, LogId, Node},
    };

    const RAISE: Command = Command::RaiseVersion { to: Version::AUDITED };

    fn table(sink: Option<Sink>) -> Table {
        Table::new(None).with_audit(Audit::new("c", sink))
    }

    fn log_id(index: u64) -> LogId {
        LogId { leader_id: CommittedLeaderId::new(1), index }
    }

    fn apply(table: &Table, index: u64, commands: Vec<Command>) {
        let time = Time { stamp: Stamp(index * 1000), wall: WallTime(index) };
        table.apply(log_id(index), Batch { time, limits: Limits::default(), commands }, false);
    }

    fn open(session: u128) -> Command {
        let (ttl, label) = (Ttl::from_millis(5000).unwrap(), Label::new("ann").unwrap());
        let owner = Some(Identity::new("team/ann").unwrap());
        Command::Open { session: SessionId(session), ttl, label, address: None, owner }
    }

    fn acquire(session: u128, wait: Wait) -> Command {
        let name = LockName::new("a").unwrap();
        let want = Want { name, mode: Mode::Exclusive, data: None, keep_data: false, must_exist: false };
        let operation = Operation::Acquire(Acquire::new(vec![want], wait, 0).unwrap());
        Command::Session { session: SessionId(session), request: None, operation }
    }

    fn force() -> Command {
        let (name, reason) = (LockName::new("a").unwrap(), Reason::new("why").unwrap());
        let (token, after, up_to, by) = (None, Token(0), None, Some(Identity::new("ops").unwrap()));
        Command::ForceRelease(ForceRelease { name, token, after, up_to, reason, now: true, by })
    }

    /// The entries of a history, from the second on.
    fn history() -> Vec<Vec<Command>> {
        let by = Some(Identity::new("ops").unwrap());
        let note = Note { who: Some("eve".to_owned()), act: "refused".to_owned(), ..Note::default() };
        vec![
            vec![open(1), Command::BeginAudit, RAISE, open(2)],
            vec![open(1), open(2), acquire(1, Wait::Forever), acquire(2, Wait::Forever)],
            vec![Command::Note(note), force()],
            vec![Command::Close { session: SessionId(2), by, reason: Some(Reason::new("dead").unwrap()) }],
            vec![Command::Tick],
            vec![],
            vec![],
            vec![Command::Tick],
        ]
    }

    fn written(directory: &TempDir, head: Head) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        let keep = |line: &Line<'_>| {
            // To its text and back: it borrows nothing then.
            let text = serde_json::to_string(line).unwrap();
            lines.push(serde_json::from_str(&text).unwrap());
        };
        verify(&files_in(directory.path()).unwrap(), Some(head.hash), keep).unwrap();
        lines
    }

    #[test]
    fn the_lines_say_who_did_what_once_the_trail_has_begun() {
        let directory = TempDir::new().unwrap();
        let rotation = Rotation { file_bytes: u64::MAX, files_kept: 0 };
        let sink = Sink::open(directory.path(), "c", rotation).unwrap();
        let (table, other) = (table(Some(sink.clone())), table(None));
        for (commands, index) in history().into_iter().zip(2..) {
            apply(&table, index, commands.clone());
            apply(&other, index, commands);
        }
        sink.sync().unwrap();
        let head = table.read(|applied| applied.trail.head());
        assert_eq!(other.read(|applied| applied.trail.head()), head);
        let lines = written(&directory, head);
        let whats: Vec<What> = lines.iter().map(|line| line.what).collect();
        let expected = [
            // Session 1 is older than the trail.
            What::Begun,
            What::VersionRaised,
            What::SessionOpened,
            What::Granted,
            What::Queued,
            What::Note,
            What::ForcedRelease,
            What::Lost,
            What::Granted,
            What::SessionEnded,
            What::Released,
            What::SessionEnded,
        ];
        assert_eq!(whats, expected, "{lines:#?}");
        let text = |text: &Option<std::borrow::Cow<'static, str>>| text.as_deref().unwrap_or_default().to_owned();
        assert_eq!((lines[0].count, lines[2].session), (Some(1), Some(Session(2))));
        assert_eq!((text(&lines[2].owner), text(&lines[2].label)), ("team/ann".to_owned(), "ann".to_owned()));
        assert_eq!((text(&lines[5].by), text(&lines[5].act)), ("eve".to_owned(), "refused".to_owned()));
        for forced in [&lines[6], &lines[7]] {
            assert_eq!((text(&forced.by), text(&forced.reason)), ("ops".to_owned(), "why".to_owned()));
        }
        assert_eq!((lines[8].token, lines[8].ticket), (Some(2), Some(1)));
        assert_eq!((text(&lines[9].by), text(&lines[9].how)), ("ops".to_owned(), "closed".to_owned()));
        assert_eq!(text(&lines[9].reason), "dead");
        assert_eq!((lines[11].session, text(&lines[11].how)), (Some(Session(1)), "expired".to_owned()));
        assert_eq!((lines[11].index, lines[11].wall_ms), (8, Some(8)));
    }

    #[test]
    fn no_member_writes_a_trail_and_so_there_are_no_lines() {
        let table = table(None);
        apply(&table, 2, vec![RAISE, Command::RaiseVersion { to: Versions::OWN.highest }, open(1)]);
        apply(&table, 3, vec![acquire(1, Wait::Forever), force(), Command::Tick]);
        assert_eq!(table.read(|applied| applied.trail), Trail::default());
        assert_eq!(table.freeze().trail.restored(), Trail::default());
        apply(&table, 4, vec![Command::BeginAudit, Command::BeginAudit, open(2)]);
        assert_eq!(table.read(|applied| applied.trail.head().lines), 2, "its begin, and the session");
    }

    fn claim(key: &str, session: u128) -> Command {
        let lease = Some(Lease { session: SessionId(session), at_end: AtLeaseEnd::Delete });
        let claims = Some(LockName::new("a").unwrap());
        let put = Put {
            key: Key::new(key.as_bytes()).unwrap(),
            value: Value::new(b"").unwrap(),
            lease: lease.into(),
            claims,
        };
        Command::Txn(Txn::new(vec![], vec![TxnOperation::Put(put)], vec![]).unwrap())
    }

    #[test]
    fn the_lines_tell_of_entries_as_of_locks() {
        let directory = TempDir::new().unwrap();
        let sink = Sink::open(directory.path(), "c", Rotation { file_bytes: u64::MAX, files_kept: 0 }).unwrap();
        let table = table(Some(sink.clone()));
        let delete = TxnOperation::Delete(Key::new(b"q3").unwrap());
        let delete = Command::Txn(Txn::new(vec![], vec![delete], vec![]).unwrap());
        let history = [
            vec![Command::BeginAudit, RAISE, open(1), open(2), open(3)],
            vec![claim("q1", 1), claim("q2", 2), claim("q3", 3)],
            vec![force(), Command::Close { session: SessionId(2), by: None, reason: None }],
            vec![delete],
        ];
        for (commands, index) in history.into_iter().zip(2..) {
            apply(&table, index, commands);
        }
        sink.sync().unwrap();
        let lines = written(&directory, table.read(|applied| applied.trail.head()));
        let told = lines.iter().filter(|line| line.lock.is_some());
        let told: Vec<_> = told.map(|line| (line.what, line.kind.is_some(), line.token)).collect();
        let expected = [
            (What::Granted, true, Some(1)),
            (What::Queued, true, Some(2)),
            (What::Queued, true, Some(3)),
            (What::ForcedRelease, false, None),
            (What::Lost, true, Some(1)),
            (What::Granted, true, Some(2)),
            (What::Released, true, Some(2)),
            (What::Granted, true, Some(3)),
            (What::Released, true, Some(3)),
        ];
        assert_eq!(told, expected, "{lines:#?}");
        assert!(lines.iter().all(|line| line.ticket.is_none() || line.what == What::Begun));
    }

    #[test]
    fn the_lines_tell_of_sessions_that_transactions_open() {
        let directory = TempDir::new().unwrap();
        let sink = Sink::open(directory.path(), "c", Rotation { file_bytes: u64::MAX, files_kept: 0 }).unwrap();
        let table = table(Some(sink.clone()));
        let put = |lease| {
            let (key, value) = (Key::new(b"q").unwrap(), Value::new(b"").unwrap());
            TxnOperation::Put(Put { key, value, lease, claims: None })
        };
        let branch = |session, who: &str| {
            let (ttl, label) = (Ttl::from_millis(60_000).unwrap(), Label::new(who).unwrap());
            let new = NewSession { session, ttl, label, address: None, owner: Identity::new(who).ok() };
            let lease = PutLease::Given(Lease { session, at_end: AtLeaseEnd::Delete });
            vec![TxnOperation::Open(new), put(lease)]
        };
        let (ann, bob) = (branch(SessionId(1), "ann"), branch(SessionId(2), "bob"));
        let open = || Command::Txn(Txn::new(vec![], ann.clone(), bob.clone()).unwrap());
        let replace = Command::Txn(Txn::new(vec![], vec![put(PutLease::None)], vec![]).unwrap());
        for (commands, index) in
            [vec![Command::BeginAudit, RAISE, open()], vec![open()], vec![replace]].into_iter().zip(2..)
        {
            apply(&table, index, commands);
        }
        sink.sync().unwrap();
        let lines = written(&directory, table.read(|applied| applied.trail.head()));
        let told = lines.iter().filter(|line| line.session.is_some());
        let told: Vec<_> = told.map(|line| (line.what, line.index, line.owner.as_deref().unwrap_or("-"))).collect();
        // Only the branch that ran, and a repetition only renews.
        assert_eq!(told, [(What::SessionOpened, 2, "ann"), (What::SessionEnded, 4, "-")], "{lines:#?}");
    }

    /// Wherever the history is cut by a snapshot, and by a message.
    #[test]
    fn a_node_that_goes_on_from_a_snapshot_has_the_same_chain() {
        let whole = table(None);
        let mut entries = Vec::new();
        for (commands, index) in history().into_iter().zip(2..) {
            apply(&whole, index, commands.clone());
            entries.push((index, commands, whole.freeze()));
        }
        let head = whole.read(|applied| applied.trail.head());
        for (at, _, frozen) in &entries {
            let machine = Machine::from_records(frozen.machine.records()).unwrap();
            let trail = Trail::from_message(frozen.trail.to_message());
            let later = table(None);
            drop(later.restore(Applied { machine, trail, ..frozen.clone() }));
            for (index, commands, _) in entries.iter().filter(|(index, ..)| index > at) {
                apply(&later, *index, commands.clone());
            }
            assert_eq!(later.read(|applied| applied.trail.head()), head, "cut after entry {at}");
        }
    }

    #[test]
    fn a_restored_cluster_begins_a_trail_that_names_the_old_one() {
        let old = table(None);
        for (commands, index) in history().into_iter().zip(2..).take(3) {
            apply(&old, index, commands);
        }
        let copy = old.freeze();
        let trail = Trail::from_message(copy.trail.restored().to_message());
        assert_eq!(trail.head(), Head::default());
        let directory = TempDir::new().unwrap();
        let sink = Sink::open(directory.path(), "c", Rotation { file_bytes: u64::MAX, files_kept: 0 }).unwrap();
        let new = table(Some(sink.clone()));
        let restore = Restore { at: WallTime(0), draw: 7, first_token: Some(Token(1 << 40)), closed_ms: None };
        let machine = copy.machine.restored(&restore).unwrap();
        drop(new.restore(Applied { machine, trail, ..copy.clone() }));
        apply(&new, 20, vec![open(7), acquire(7, Wait::Forever)]);
        sink.sync().unwrap();
        let lines = written(&directory, new.read(|applied| applied.trail.head()));
        assert_eq!(lines[0].what, What::Restored);
        let reason = lines[0].reason.clone().unwrap();
        assert!(reason.contains(&copy.trail.head().hash.to_string()), "{reason}");
    }

    #[test]
    fn members_that_come_change_and_go_have_lines() {
        let node = |id: u64| (id, Node { peer_address: format!("h{id}:1"), ..Node::default() });
        let membership = |voters: &[u64], nodes: &[u64]| {
            let nodes: std::collections::BTreeMap<u64, Node> = nodes.iter().map(|id| node(*id)).collect();
            Membership::new(vec![voters.iter().copied().collect()], nodes).unwrap()
        };
        let directory = TempDir::new().unwrap();
        let sink = Sink::open(directory.path(), "c", Rotation { file_bytes: u64::MAX, files_kept: 0 }).unwrap();
        let table = Arc::new(table(Some(sink.clone())));
        table.pass(log_id(1), Some(membership(&[1], &[1])));
        apply(&table, 2, vec![Command::BeginAudit, RAISE]);
        table.pass(log_id(3), Some(membership(&[1], &[1, 2])));
        table.pass(log_id(4), Some(membership(&[1, 2], &[1, 2])));
        table.pass(log_id(5), Some(membership(&[2], &[2])));
        sink.sync().unwrap();
        let lines = written(&directory, table.read(|applied| applied.trail.head()));
        let told: Vec<_> = lines[2..].iter().map(|line| (line.what, line.node, line.how.as_deref())).collect();
        let expected = [
            (What::MemberChanged, Some(2), Some("learner")),
            (What::MemberChanged, Some(2), Some("voter")),
            (What::MemberRemoved, Some(1), None),
        ];
        assert_eq!(told, expected);
        assert!(lines[2..].iter().all(|line| line.wall_ms.is_none()));
    }
}
