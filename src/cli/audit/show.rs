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
        let format = self.output.output;
        self.show(|line| match format {
            Format::Text => deliver(&sentence(line)),
            Format::Json => deliver_line(line),
        })
    }

    /// Checks the files, and tells the wanted lines until one cannot be told.
    fn show(self, mut tell: impl FnMut(&AuditLine<'_>) -> io::Result<()>) -> Result<Exit, Failure> {
        let wanted = StorySubject { lock: self.lock, session: self.session.map(|session| Session(session.0)) };
        let mut written: io::Result<()> = Ok(());

        let checked = verify(&files(&self.files)?, None, |line| {
            if written.is_ok() && select(&wanted, line) {
                written = tell(line);
            }
        });

        // A reader that has seen enough, as `head` has, does not make a broken trail sound: the exit code tells of the trail first.
        checked?;
        written.map_err(Failure::for_stream)?;
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use lockkeeper_audit::{AuditHeader, Head};

    /// A file of a trail in which sessions 1 to 3 are opened, by the lines 2 to 4.
    fn trail() -> String {
        let mut head = Head::genesis("c");
        let header = AuditHeader {
            lockkeeper_audit: 1,
            cluster: "c".to_owned(),
            after: 0,
            hash: head.hash,
            token: 0,
            ticket: 0,
            gap_from: None,
        };
        let begun = AuditLine { token: Some(0), ticket: Some(0), count: Some(0), ..AuditLine::new(AuditEvent::Begun) };
        let opened = |session| AuditLine {
            session: Some(Session(session)),
            ttl_ms: Some(1_000),
            ..AuditLine::new(AuditEvent::SessionOpened)
        };

        let mut text = serde_json::to_vec(&header).unwrap();
        text.push(b'\n');
        for line in [begun, opened(1), opened(2), opened(3)] {
            head.push(line, &mut text);
        }
        String::from_utf8(text).unwrap()
    }

    fn closed() -> io::Result<()> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn full() -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }

    /// The exit code and the message for a file of this text, if the one line that is wanted is told with this result.
    fn told(text: &str, tell: fn() -> io::Result<()>) -> (Exit, String) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("audit-00000000000000000001.jsonl");
        fs::write(&file, text).unwrap();
        let output = Output { output: Format::Text };
        let show = Show { files: vec![file], lock: None, session: Some(SessionId(1)), output };

        let mut lines = 0;
        let ended = show.show(|_| {
            lines += 1;
            tell()
        });
        assert_eq!(lines, 1);
        match ended {
            Ok(exit) => (exit, String::new()),
            Err(failure) => (failure.exit, failure.message),
        }
    }

    #[test]
    fn a_closed_stdout_does_not_make_a_broken_trail_sound() {
        let sound = trail();
        let changed = sound.replacen("\"ttl_ms\":1000", "\"ttl_ms\":9000", 2);
        let broken = changed.replacen("\"ttl_ms\":9000", "\"ttl_ms\":1000", 1);
        assert_eq!(told(&sound, || Ok(())), (Exit::Success, String::new()));
        assert_eq!(told(&sound, closed), (Exit::Success, String::new()));
        assert_eq!(told(&sound, full).0, Exit::Error);

        let (exit, message) = told(&broken, || Ok(()));
        assert_eq!((exit, message.contains("line 3 of the trail")), (Exit::Error, true), "{message}");
        assert_eq!(told(&broken, closed).0, exit);
        assert!(told(&broken, closed).1.contains("the chain breaks"));
    }
}
