//! Files of an audit trail.

use lockkeeper_audit::{AuditEvent, AuditLine, Head, Reader, Session, VerifyError, verify};
use sha2::{Digest as _, Sha256};

use super::{says, with_file};

const CLUSTER: &str = "blue";

fn line(index: u64, what: AuditEvent) -> AuditLine<'static> {
    AuditLine { index, wall_ms: Some(index), ..AuditLine::new(what) }
}

/// Ann holds, Bob waits, Ann's session ends.
fn lines() -> Vec<AuditLine<'static>> {
    let session = |id: u128, line: AuditLine<'static>| AuditLine { session: Some(Session(id)), ..line };
    let of_lock = |id: u128, line: AuditLine<'static>| session(id, AuditLine { lock: Some("jobs".into()), ..line });
    let exclusive = |line: AuditLine<'static>| AuditLine { mode: Some("exclusive".into()), ..line };
    let opened = |id| {
        session(id, AuditLine { ttl_ms: Some(1000), label: Some("é".into()), ..line(2, AuditEvent::SessionOpened) })
    };
    vec![
        AuditLine { token: Some(0), ticket: Some(0), count: Some(0), ..line(1, AuditEvent::Begun) },
        opened(1),
        opened(2),
        exclusive(of_lock(1, AuditLine { token: Some(1), ..line(3, AuditEvent::Granted) })),
        exclusive(of_lock(2, AuditLine { ticket: Some(1), ..line(4, AuditEvent::Queued) })),
        session(1, AuditLine { how: Some("expired".into()), ..line(5, AuditEvent::SessionEnded) }),
        of_lock(1, AuditLine { token: Some(1), how: Some("expired".into()), ..line(5, AuditEvent::Lost) }),
        exclusive(of_lock(2, AuditLine { token: Some(2), ticket: Some(1), ..line(5, AuditEvent::Granted) })),
        AuditLine {
            by: Some("ops".into()),
            act: Some("backup".into()),
            target: Some("".into()),
            ..line(6, AuditEvent::Note)
        },
    ]
}

/// A file of lines that go on after a head.
fn file(mut head: Head, token: u64, ticket: u64, lines: &[AuditLine<'static>]) -> Vec<u8> {
    let Head { lines: after, hash } = head;
    let header = format!(
        r#"{{"lockkeeper_audit":1,"cluster":"{CLUSTER}","after":{after},"hash":"{hash}","token":{token},"ticket":{ticket}}}"#
    );
    let mut text = format!("{header}\n").into_bytes();
    lines.iter().for_each(|line| head.push(line.clone(), &mut text));
    text
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let lines = lines();
    let genesis = Head::genesis(CLUSTER);
    let mut later = genesis;
    lines[..4].iter().for_each(|line| later.push(line.clone(), &mut Vec::new()));
    // After it there is no line.
    let last = Head { lines: u64::MAX, hash: genesis.hash };
    let files = [(genesis, 0, &lines[..]), (later, 1, &lines[4..]), (genesis, 0, &[]), (last, 0, &[])];
    files.map(|(head, token, lines)| file(head, token, 0, lines)).into()
}

pub(super) fn audit(bytes: &[u8]) {
    with_file(bytes, |path| {
        let mut shown = Vec::new();
        let verified = verify(&[path.to_owned()], None, |line| {
            let mut text = Vec::new();
            Head::default().push(line.clone(), &mut text);
            shown.push(text);
        });
        match verified {
            Ok(report) => {
                assert_eq!(report.head.lines - (report.first - 1), shown.len() as u64, "{report:?}");
                let opened = Reader::open(path).expect("it was read");
                assert_eq!((opened.header.cluster, opened.header.after + 1), (report.cluster, report.first));
            }
            Err(VerifyError::Broken(broken)) => {
                assert!(broken.at > 0);
                says(&broken);
            }
            Err(error) => says(&error),
        }
    });
}

const HASH_FIELD: &str = ",\"hash\":\"";

/// Every line has the hash of the one before and of its own fields.
pub(super) fn repair(file: &mut Vec<u8>) {
    let Ok(text) = str::from_utf8(file) else { return };
    let mut repaired = String::with_capacity(text.len());
    let mut hash: Option<[u8; 32]> = None;
    for line in text.split_inclusive('\n') {
        match (hash, line.rfind(HASH_FIELD)) {
            // The header names the hash before the first line.
            (None, Some(at)) => {
                let digits = line.get(at + HASH_FIELD.len()..).and_then(|rest| rest.get(..64)).unwrap_or_default();
                hash = digits.parse::<lockkeeper_audit::Hash>().ok().map(|hash| hash.0);
                repaired.push_str(line);
            }
            (Some(before), Some(at)) => {
                let own = format!("{}}}", &line[..at]);
                let next: [u8; 32] = Sha256::new().chain_update(before).chain_update(&own).finalize().into();
                let end = if line.ends_with('\n') { "\n" } else { "" };
                repaired += &format!("{}{HASH_FIELD}{}\"}}{end}", &line[..at], lockkeeper_audit::Hash(next));
                hash = Some(next);
            }
            (_, None) => repaired.push_str(line),
        }
    }
    *file = repaired.into_bytes();
}
