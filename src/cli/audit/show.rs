//! `lockkeeper audit show` tells what happened to a lock, or to a session.

use std::{io, path::PathBuf};

use clap::Args;
use jiff::Timestamp;

use super::{
    super::{
        Exit, Failure,
        output::{Format, Output, deliver, deliver_line},
        show,
    },
    files,
};
use crate::machine::SessionId;
use lockkeeper_audit::{AuditEvent, AuditLine, Session, StorySubject, select, verify};

/// Shows what happened to a lock, or to a session. The files are checked as by `audit verify`; what comes before a line that breaks a rule
/// is shown.
#[derive(Args, Debug)]
pub(super) struct Show {
    /// Files, or directories with files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Only lines about this lock
    #[arg(long, value_name = "NAME", required_unless_present = "session")]
    lock: Option<String>,
    /// Only lines about this session
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    #[command(flatten)]
    output: Output,
}

impl Show {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let wanted = StorySubject { lock: self.lock, session: self.session.map(|session| Session(session.0)) };
        let mut written: io::Result<()> = Ok(());

        let checked = verify(&files(&self.files)?, None, |line| {
            if written.is_ok() && select(&wanted, line) {
                written = match self.output.output {
                    Format::Text => deliver(&sentence(line)),
                    Format::Json => deliver_line(line),
                };
            }
        });

        written.map_err(Failure::for_stream)?;
        checked?;
        Ok(Exit::Success)
    }
}

/// A line for people: when, and what happened.
fn sentence(line: &AuditLine<'_>) -> String {
    let wall = line.wall_ms.and_then(|ms| Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok());
    let when = wall.map_or_else(|| "-".to_owned(), show::time);
    format!("{when}  {:>8}  {}\n", line.index, what_happened(line))
}

fn what_happened(line: &AuditLine<'_>) -> String {
    let said = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().map(show::text);
    let session = line.session.map(|session| session.to_string()).unwrap_or_default();
    let who = match said(&line.label) {
        Some(label) => format!("session {session} ({label})"),
        None => format!("session {session}"),
    };

    let lock = said(&line.lock).unwrap_or_default();
    let token = line.token.unwrap_or_default();
    let place = match line.ticket {
        Some(ticket) => format!("ticket {ticket}"),
        // An entry waits with its token.
        None => format!("token {token}"),
    };

    let how = said(&line.how).map(|how| format!(": {how}")).unwrap_or_default();
    let mode = match (line.mode.as_deref(), line.permits) {
        (Some("permit"), Some(permits)) => format!("a permit of {permits}"),
        (Some(mode), _) => mode.to_owned(),
        (None, _) => String::new(),
    };

    let by = said(&line.by).map(|by| format!(" by {by}")).unwrap_or_default();
    let reason = said(&line.reason).map(|reason| format!(", reason: {reason}")).unwrap_or_default();
    let count = line.count.unwrap_or_default();

    match line.what {
        AuditEvent::Begun => format!("the trail begins, with {count} open sessions"),
        AuditEvent::Restored => format!("the cluster was restored{reason}"),
        AuditEvent::SessionOpened => {
            let owner = said(&line.owner).map(|owner| format!(", of {owner}")).unwrap_or_default();
            let from = said(&line.address).map(|address| format!(", from {address}")).unwrap_or_default();
            format!("{who} opened{owner}{from}, TTL {} ms", line.ttl_ms.unwrap_or_default())
        }
        AuditEvent::OwnerSet => format!("{who} belongs to {}", said(&line.owner).unwrap_or_default()),
        AuditEvent::SessionEnded => format!("{who} ended{by}{how}{reason}"),
        AuditEvent::Granted => {
            let waited = line.ticket.map(|ticket| format!(" after waiting with ticket {ticket}")).unwrap_or_default();
            format!("{lock} granted, {mode}, token {token}, to {who}{waited}")
        }
        AuditEvent::Queued => format!("{who} waits for {lock}, {mode}, {place}"),
        AuditEvent::Left => format!("{who} stopped waiting for {lock}, {place}{how}"),
        AuditEvent::Released => format!("{lock} released, token {token}, by {who}"),
        AuditEvent::Lost => {
            format!("{lock} lost, token {token}, by {who}{how}{by_whom}{reason}", by_whom = forced(&by))
        }
        AuditEvent::Revoked => {
            format!("{lock} revoked, token {token}, from {who}{by_whom}{reason}", by_whom = forced(&by))
        }
        AuditEvent::ForcedRelease => format!("forced release of {lock}{by}, {count} grants{how}{reason}"),
        AuditEvent::WaiterRemoved => format!("{place} removed from the queue of {lock}{by}"),
        AuditEvent::DelayLifted => format!("lock-delay of {lock} lifted{by}"),
        AuditEvent::DataDropped => {
            format!("data of {count} locks under {:?} dropped{by}", line.target.as_deref().unwrap_or_default())
        }
        AuditEvent::Resized => format!("{lock} resized to {} permits{by}", line.permits.unwrap_or_default()),
        AuditEvent::MemberChanged => format!("node {} is a member{how}", line.node.unwrap_or_default()),
        AuditEvent::MemberRemoved => format!("node {} was removed from the cluster", line.node.unwrap_or_default()),
        AuditEvent::VersionRaised => format!("the cluster version is {}", line.version.unwrap_or_default()),
        AuditEvent::Note => {
            let act = said(&line.act).unwrap_or_default();
            let target = said(&line.target).map(|target| format!(" {target}")).unwrap_or_default();
            format!("{act}{target}{by}{reason}")
        }
    }
}

/// Who took a grant: the sentence has the holder behind another `by`.
fn forced(by: &str) -> String {
    by.strip_prefix(" by ").map(|by| format!(", taken by {by}")).unwrap_or_default()
}
