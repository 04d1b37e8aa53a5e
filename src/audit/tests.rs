//! What a forger or an accident makes of files is found, with its line.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use super::*;
use crate::files::{AuditWriter, Position};

const ALL: Rotation = Rotation { file_bytes: u64::MAX, files_kept: 0 };

fn line(index: u64, what: AuditEvent) -> AuditLine<'static> {
    AuditLine { index, wall_ms: Some(index), ..AuditLine::new(what) }
}

fn begun() -> AuditLine<'static> {
    AuditLine { token: Some(0), ticket: Some(0), count: Some(0), ..line(1, AuditEvent::Begun) }
}

fn opened(index: u64, session: u128) -> AuditLine<'static> {
    AuditLine { session: Some(Session(session)), ttl_ms: Some(1000), ..line(index, AuditEvent::SessionOpened) }
}

fn ended(index: u64, session: u128) -> AuditLine<'static> {
    AuditLine { session: Some(Session(session)), how: Some("expired".into()), ..line(index, AuditEvent::SessionEnded) }
}

fn of_lock(index: u64, what: AuditEvent, session: u128, token: u64) -> AuditLine<'static> {
    let lock = Some("a".into());
    let session = Some(Session(session));
    AuditLine { lock, session, token: Some(token), ..line(index, what) }
}

fn granted(index: u64, session: u128, token: u64) -> AuditLine<'static> {
    AuditLine { mode: Some("exclusive".into()), ..of_lock(index, AuditEvent::Granted, session, token) }
}

fn queued(index: u64, session: u128, ticket: u64) -> AuditLine<'static> {
    let waiting = of_lock(index, AuditEvent::Queued, session, 0);
    AuditLine { token: None, ticket: Some(ticket), mode: Some("exclusive".into()), ..waiting }
}

/// Sessions 1 to 3; 1 holds, 2 and then 3 wait, and get the lock in this order.
fn sound() -> Vec<AuditLine<'static>> {
    vec![
        begun(),
        opened(2, 1),
        opened(2, 2),
        opened(2, 3),
        granted(3, 1, 1),
        queued(4, 2, 1),
        queued(5, 3, 2),
        of_lock(6, AuditEvent::Released, 1, 1),
        AuditLine { ticket: Some(1), ..granted(6, 2, 2) },
        ended(7, 2),
        of_lock(7, AuditEvent::Lost, 2, 2),
        AuditLine { ticket: Some(2), ..granted(7, 3, 3) },
    ]
}

/// Writes lines as a node does, each as an entry of its own.
fn write(writer: &mut AuditWriter, at: &mut Head, lines: &[AuditLine<'static>]) {
    let mut token = 0;
    let mut ticket = 0;
    for line in lines {
        let before = *at;
        let mut text = Vec::new();
        at.push(line.clone(), &mut text);
        writer.write(Position { head: before, token, ticket }, &text, *at).unwrap();
        token = token.max(line.token.unwrap_or_default());
        ticket = ticket.max(line.ticket.unwrap_or_default());
    }
}

fn files_of(lines: &[AuditLine<'static>], rotation: Rotation) -> (TempDir, Head) {
    let directory = TempDir::new().unwrap();
    let mut head = Head::genesis("c");
    write(&mut AuditWriter::open(directory.path(), "c", rotation).unwrap(), &mut head, lines);
    (directory, head)
}

fn check(directory: &Path) -> Result<SoundFiles, VerifyError> {
    verify(&files_in(directory).unwrap(), None, |_| {})
}

/// The line of the trail and the fault.
fn broken(checked: Result<SoundFiles, VerifyError>) -> (u64, LineFault) {
    match checked {
        Err(VerifyError::Broken(broken)) => (broken.line.unwrap(), broken.fault),
        other => panic!("{other:?}"),
    }
}

/// The fault of a consistent chain over these lines.
fn forged(lines: &[AuditLine<'static>]) -> (u64, LineFault) {
    broken(check(files_of(lines, ALL).0.path()))
}

fn with(change: impl FnOnce(&mut Vec<AuditLine<'static>>)) -> Vec<AuditLine<'static>> {
    let mut lines = sound();
    change(&mut lines);
    lines
}

/// The only file, changed as text. The header is line 0.
fn edit(directory: &Path, change: impl FnOnce(&mut Vec<String>)) {
    let path = files_in(directory).unwrap().remove(0);
    let mut lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
    change(&mut lines);
    fs::write(path, lines.join("\n") + "\n").unwrap();
}

#[test]
fn a_sound_trail_is_sound_and_its_files_are_private() {
    let (directory, head) = files_of(&sound(), ALL);
    let mut shown = 0;
    let report = verify(&files_in(directory.path()).unwrap(), Some(head.hash), |_| shown += 1).unwrap();
    assert_eq!((report.first, report.head, report.index, shown), (1, head, 7, 12));
    assert_eq!((report.gaps, report.open), (vec![], (2, 1, 0)));
    let mode = fs::metadata(&files_in(directory.path()).unwrap()[0]).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn the_chain_breaks_where_a_file_was_edited() {
    let edited = |change: fn(&mut Vec<String>)| {
        let (directory, _) = files_of(&sound(), ALL);
        edit(directory.path(), change);
        broken(check(directory.path()))
    };
    let changed = edited(|lines| lines[5] = lines[5].replace("\"token\":1", "\"token\":9"));
    assert_eq!(changed, (5, LineFault::Chain(BadLine::Hash)));
    let removed = edited(|lines| drop(lines.remove(5)));
    assert_eq!(removed, (5, LineFault::Chain(BadLine::Number { found: 6, before: 4 })));
    let swapped = edited(|lines| lines.swap(5, 6));
    assert_eq!(swapped, (5, LineFault::Chain(BadLine::Number { found: 6, before: 4 })));
    let foreign = edited(|lines| lines[5] = "noise".to_owned());
    assert!(matches!(foreign, (5, LineFault::Chain(BadLine::Malformed(_)))), "{foreign:?}");
}

#[test]
fn a_truncated_end_is_seen_by_the_head() {
    let (directory, head) = files_of(&sound(), ALL);
    edit(directory.path(), |lines| lines.truncate(11));
    assert_eq!(check(directory.path()).unwrap().head.lines, 10);
    let checked = verify(&files_in(directory.path()).unwrap(), Some(head.hash), |_| {});
    assert_eq!(broken(checked), (10, LineFault::Head(head.hash)));
}

#[test]
fn two_holders_at_once_are_found() {
    let lines = with(|lines| drop(lines.remove(7)));
    assert_eq!(forged(&lines), (8, BrokenRule::Exclusion { lock: "a".into(), token: 2, holder: 1 }.into()));
    let permit = |index, session, token| AuditLine {
        mode: Some("permit".into()),
        permits: Some(2),
        ..granted(index, session, token)
    };
    let (directory, _) = files_of(&[begun(), opened(2, 1), permit(3, 1, 1), permit(3, 1, 2)], ALL);
    assert!(check(directory.path()).is_ok());
    let fault = forged(&[begun(), opened(2, 1), permit(3, 1, 1), permit(3, 1, 2), permit(3, 1, 3)]);
    assert_eq!(fault, (5, BrokenRule::Exclusion { lock: "a".into(), token: 3, holder: 1 }.into()));
    let shared = AuditLine { mode: Some("shared".into()), ..granted(4, 1, 4) };
    let fault = forged(&[begun(), opened(2, 1), permit(3, 1, 1), shared]);
    assert_eq!(fault, (4, BrokenRule::Exclusion { lock: "a".into(), token: 4, holder: 1 }.into()));
}

#[test]
fn a_token_that_does_not_rise_is_found() {
    let lines = with(|lines| lines[8].token = Some(1));
    assert_eq!(forged(&lines), (9, BrokenRule::Token { token: 1, before: 1 }.into()));
}

#[test]
fn a_waiter_that_is_overtaken_is_found() {
    // Session 3 gets the lock by the second ticket.
    let lines = with(|lines| lines[8] = AuditLine { ticket: Some(2), ..granted(6, 3, 2) });
    assert_eq!(forged(&lines), (9, BrokenRule::Overtaken { lock: "a".into(), token: 2, overtaken: 1 }.into()));
    // Or somebody who did not wait at all.
    let lines = with(|lines| lines[8] = granted(6, 1, 2));
    assert_eq!(forged(&lines), (9, BrokenRule::Overtaken { lock: "a".into(), token: 2, overtaken: 1 }.into()));
}

#[test]
fn a_grant_to_an_ended_or_unknown_session_is_found() {
    let lines = with(|lines| {
        lines.truncate(8);
        lines.extend([ended(6, 2), AuditLine { ticket: Some(1), ..granted(6, 2, 2) }]);
    });
    let (at, fault) = forged(&lines);
    assert_eq!((at, fault), (10, BrokenRule::NotOpen(Session(2).to_string()).into()));
    assert_eq!(forged(&[begun(), granted(2, 9, 1)]), (2, BrokenRule::NotOpen(Session(9).to_string()).into()));
    let owned = AuditLine { session: Some(Session(9)), ..line(2, AuditEvent::OwnerSet) };
    assert_eq!(forged(&[begun(), owned]), (2, BrokenRule::NotOpen(Session(9).to_string()).into()));
    assert_eq!(forged(&[begun(), opened(2, 1), opened(2, 1)]).0, 3);
}

#[test]
fn a_trail_does_not_begin_again() {
    let lines = with(|lines| lines[7] = AuditLine { token: Some(1), ticket: Some(2), count: Some(3), ..begun() });
    assert_eq!(forged(&lines).0, 8);
    let lines = with(|lines| lines[7] = AuditLine { index: 6, what: AuditEvent::Restored, ..lines[7].clone() });
    assert_eq!(forged(&lines), (8, BrokenRule::Begun.into()));
}

#[test]
fn what_ends_must_have_begun() {
    let lock = "a".to_owned();
    let token = 5;
    let fault = forged(&[begun(), opened(2, 1), of_lock(3, AuditEvent::Released, 1, 5)]);
    assert_eq!(fault, (3, BrokenRule::NotHeld { lock: lock.clone(), token }.into()));
    let left = AuditLine { what: AuditEvent::Left, ..queued(3, 1, 5) };
    assert_eq!(forged(&[begun(), opened(2, 1), left]), (3, BrokenRule::NotQueued { lock, ticket: 5 }.into()));
    assert_eq!(forged(&[begun(), opened(5, 1), opened(4, 2)]), (3, BrokenRule::Order { found: 4, before: 5 }.into()));
}

/// In the middle of a history, what is from before is believed, and what is not is not.
#[test]
fn a_trail_that_begins_with_sessions_knows_what_it_cannot_know() {
    let before = AuditLine { token: Some(5), ticket: Some(3), count: Some(2), ..begun() };
    let rest = [of_lock(2, AuditEvent::Released, 1, 4), granted(3, 2, 6), of_lock(4, AuditEvent::Released, 2, 6)];
    let (directory, _) = files_of(&[std::slice::from_ref(&before), &rest[..]].concat(), ALL);
    assert!(check(directory.path()).is_ok());
    assert_eq!(forged(&[before.clone(), granted(2, 1, 5)]).0, 2);
    assert_eq!(forged(&[before.clone(), ended(2, 1), granted(3, 1, 6)]).0, 3);
    assert_eq!(forged(&[before, of_lock(2, AuditEvent::Released, 1, 6)]).0, 2);
}

#[test]
fn files_are_rotated_and_the_chain_goes_on() {
    let rotation = Rotation { file_bytes: 600, files_kept: 0 };
    let (directory, head) = files_of(&sound(), rotation);
    let files = files_in(directory.path()).unwrap();
    assert!(files.len() >= 3, "{files:?}");
    let shuffled: Vec<PathBuf> = files.iter().rev().cloned().collect();
    assert_eq!(verify(&shuffled, Some(head.hash), |_| {}).unwrap().gaps, []);

    // Without the middle: a gap, which is no break.
    let some: Vec<PathBuf> = [files[0].clone(), files[files.len() - 1].clone()].into();
    let report = verify(&some, Some(head.hash), |_| {}).unwrap();
    assert_eq!(report.gaps.len(), 1);

    let kept = Rotation { files_kept: 2, ..rotation };
    let (directory, head) = files_of(&sound(), kept);
    assert_eq!(files_in(directory.path()).unwrap().len(), 2);
    let report = verify(&files_in(directory.path()).unwrap(), Some(head.hash), |_| {}).unwrap();
    assert!(report.first > 1 && report.gaps.is_empty());
}

#[test]
fn a_torn_last_line_is_cut_and_written_again() {
    let lines = sound();
    let (directory, head) = files_of(&lines, ALL);
    let path = files_in(directory.path()).unwrap().remove(0);
    let whole = fs::read(&path).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for torn in [last, last + 1, whole.len() - 1] {
        fs::write(&path, &whole[..torn]).unwrap();
        let mut writer = AuditWriter::open(directory.path(), "c", ALL).unwrap();
        assert_eq!(writer.last.unwrap().lines, 11);
        assert_eq!(fs::read(&path).unwrap(), whole[..last]);
        let mut at = writer.last.unwrap();
        write(&mut writer, &mut at, &lines[11..]);
        assert_eq!((at, fs::read(&path).unwrap()), (head, whole.clone()), "torn at byte {torn}");
    }
    // A crash before the header was written.
    let begun = directory.path().join(format!("{AUDIT_PREFIX}{:020}.jsonl", 13));
    fs::write(&begun, "{\"lock").unwrap();
    assert_eq!(AuditWriter::open(directory.path(), "c", ALL).unwrap().last, Some(head));
    assert!(!begun.exists());
}

#[test]
fn a_line_that_is_too_long_is_no_end_of_the_file() {
    let (directory, head) = files_of(&sound(), ALL);
    let path = files_in(directory.path()).unwrap().remove(0);
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend(std::iter::repeat_n(b'x', 200_000));
    bytes.push(b'\n');
    fs::write(&path, &bytes).unwrap();
    for expected in [None, Some(head.hash)] {
        let error = verify(&files_in(directory.path()).unwrap(), expected, |_| {}).unwrap_err();
        assert!(error.to_string().contains("more than"), "{error}");
    }
}

#[test]
fn a_file_does_not_begin_after_the_last_number() {
    let (directory, _) = files_of(&sound(), ALL);
    edit(directory.path(), |lines| {
        lines[0] = lines[0].replace("\"after\":0", &format!("\"after\":{}", u64::MAX));
        lines.truncate(1);
    });
    let error = check(directory.path()).unwrap_err();
    assert!(error.to_string().contains("no chain has more"), "{error}");
}

#[test]
fn a_gap_is_said_and_another_nodes_files_fill_it() {
    let lines = sound();
    let (whole, head) = files_of(&lines, ALL);
    let holey = TempDir::new().unwrap();
    let mut at = Head::genesis("c");
    let mut writer = AuditWriter::open(holey.path(), "c", ALL).unwrap();
    write(&mut writer, &mut at, &lines[..5]);
    let mut skipped = Vec::new();
    let mut before = at;
    lines[5..9].iter().for_each(|line| at.push(line.clone(), &mut skipped));
    // What a snapshot tells of line 9: token 2, ticket 2.
    std::mem::swap(&mut before, &mut at);
    let mut text = Vec::new();
    at = before;
    before.push(lines[9].clone(), &mut text);
    writer.write(Position { head: at, token: 2, ticket: 2 }, &text, before).unwrap();
    write(&mut writer, &mut before, &lines[10..]);
    assert_eq!(before, head);

    let report = check(holey.path()).unwrap();
    assert_eq!((report.gaps, report.head), (vec![MissingLines { from: 6, to: 9 }], head));
    let files = files_in(holey.path()).unwrap();
    assert_eq!(Reader::open(&files[1]).unwrap().header.gap_from, Some(6));
    let both = [files, files_in(whole.path()).unwrap()].concat();
    let mut shown = Vec::new();
    assert_eq!(verify(&both, Some(head.hash), |line| shown.push(line.line)).unwrap().gaps, []);
    assert_eq!(shown, (1..=12).collect::<Vec<_>>());
}

#[test]
fn two_histories_are_told_apart() {
    let (one, _) = files_of(&sound(), ALL);
    let other = with(|lines| lines[11].wall_ms = Some(0));
    let (other, _) = files_of(&other, ALL);
    let both = [files_in(one.path()).unwrap(), files_in(other.path()).unwrap()].concat();
    let (at, fault) = broken(verify(&both, None, |_| {}));
    assert!(at == 12 && matches!(fault, LineFault::Differs { line: 12, .. }), "{at} {fault:?}");
    assert!(matches!(AuditWriter::open(one.path(), "d", ALL), Err(FileError::OtherCluster { .. })));
}

/// A changed file is evidence: it stays as it is, and a new file goes on from its last sound line.
#[test]
fn a_changed_file_is_left_alone() {
    let lines = sound();
    let (directory, head) = files_of(&lines, ALL);
    edit(directory.path(), |lines| lines[12] = lines[12].replace("\"token\":3", "\"token\":4"));
    let changed = fs::read(&files_in(directory.path()).unwrap()[0]).unwrap();
    let mut writer = AuditWriter::open(directory.path(), "c", ALL).unwrap();
    let mut at = writer.last.unwrap();
    assert_eq!(at.lines, 11);
    write(&mut writer, &mut at, &lines[11..]);
    let files = files_in(directory.path()).unwrap();
    assert_eq!((at, files.len(), fs::read(&files[0]).unwrap()), (head, 2, changed));
    assert_eq!(broken(check(directory.path())).0, 12);
}

/// Flips the highest bit of a byte: what stands there is not text any more.
fn rot(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] |= 0x80;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_file_with_rotten_bytes_is_left_alone() {
    let lines = sound();
    for at in [0.3, 0.9] {
        let (directory, head) = files_of(&lines, ALL);
        let path = files_in(directory.path()).unwrap().remove(0);
        let length = fs::metadata(&path).unwrap().len();
        rot(&path, (length as f64 * at) as usize);
        let rotten = fs::read(&path).unwrap();

        let mut writer = AuditWriter::open(directory.path(), "c", ALL).unwrap();
        let mut last = writer.last.unwrap();
        let kept = usize::try_from(last.lines).unwrap();
        assert!((1..12).contains(&kept), "{kept}");
        write(&mut writer, &mut last, &lines[kept..]);
        let files = files_in(directory.path()).unwrap();
        assert_eq!((last, files.len(), fs::read(&files[0]).unwrap()), (head, 2, rotten));
    }
}

#[test]
fn a_file_with_a_line_that_is_too_long_is_left_alone() {
    let (directory, head) = files_of(&sound(), ALL);
    let path = files_in(directory.path()).unwrap().remove(0);
    let joined = fs::read_to_string(&path).unwrap() + &"x".repeat(70_000) + "\n";
    fs::write(&path, &joined).unwrap();
    let writer = AuditWriter::open(directory.path(), "c", ALL).unwrap();
    assert_eq!(writer.last, Some(head));
    assert_eq!(fs::read_to_string(&path).unwrap(), joined);
}

#[test]
fn a_file_with_a_rotten_header_is_left_alone_and_its_lines_count_as_missing() {
    let lines = sound();
    let small = Rotation { file_bytes: 500, files_kept: 0 };
    // A byte that is not text, a letter that is another one (no field has this name), and a file that does not begin like ours.
    for (at, bit) in [(30, 0x80), (24, 0x01), (0, 0x01)] {
        let (directory, head) = files_of(&lines, small);
        let files = files_in(directory.path()).unwrap();
        let newest = files.last().unwrap();
        let before = Reader::open(newest).unwrap().header.after;
        let mut bytes = fs::read(newest).unwrap();
        bytes[at] ^= bit;
        fs::write(newest, &bytes).unwrap();

        let mut writer = AuditWriter::open(directory.path(), "c", small).unwrap();
        let mut last = writer.last.unwrap();
        assert_eq!(last.lines, before);
        let (next, rest) = lines[usize::try_from(before).unwrap()..].split_at(1);
        write(&mut writer, &mut last, next);

        // The next start goes on with the new file.
        drop(writer);
        let mut writer = AuditWriter::open(directory.path(), "c", small).unwrap();
        assert_eq!(writer.last, Some(last));
        write(&mut writer, &mut last, rest);
        assert_eq!((last, fs::read(newest).unwrap()), (head, bytes));
        let again = files_in(directory.path()).unwrap();
        assert_eq!(again.len(), files.len() + 1, "{again:?}");
        assert_eq!(Reader::open(again.last().unwrap()).unwrap().header.after, before);
    }

    // A file that was never ours is another matter.
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("audit-1.jsonl"), "type=SYSCALL\n").unwrap();
    let refused = AuditWriter::open(directory.path(), "c", ALL).unwrap_err();
    assert!(refused.to_string().contains("is not an audit file"), "{refused}");
}

#[test]
fn lines_that_a_process_left_without_a_sync_are_in_the_next_sync() {
    let (directory, _) = files_of(&sound(), ALL);
    let mut writer = AuditWriter::open(directory.path(), "c", ALL).unwrap();
    assert!(writer.is_dirty, "nobody knows whether the last process synced them");
    writer.sync().unwrap();
    assert!(!writer.is_dirty);
}

mod sink {
    use super::*;

    /// The lines of each entry, with their places.
    fn entries(lines: &[AuditLine<'static>]) -> Vec<(ChainPlace, Vec<u8>)> {
        let mut at = Head::genesis("c");
        let entry = |pair: &[AuditLine<'static>]| {
            let before = at;
            let mut text = Vec::new();
            pair.iter().for_each(|line| at.push(line.clone(), &mut text));
            (ChainPlace { before, after: at, token: 0, ticket: 0 }, text)
        };
        lines.chunks(2).map(entry).collect()
    }

    fn push(sink: &Sink, entries: &[(ChainPlace, Vec<u8>)]) {
        entries.iter().for_each(|(place, text)| sink.push(*place, text.clone()));
    }

    #[test]
    fn lines_that_are_made_again_after_a_crash_are_written_once() {
        let directory = TempDir::new().unwrap();
        let entries = entries(&sound());
        let (expected, head) = files_of(&sound(), ALL);
        let sink = Sink::open(directory.path(), "c", ALL).unwrap();
        push(&sink, &entries[..4]);
        sink.sync().unwrap();
        sink.close();
        // The end is torn in the middle of an entry.
        let path = files_in(directory.path()).unwrap().remove(0);
        let length = fs::metadata(&path).unwrap().len();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 3).unwrap();
        let sink = Sink::open(directory.path(), "c", ALL).unwrap();
        push(&sink, &entries);
        sink.close();
        let written = fs::read(&path).unwrap();
        assert_eq!(written, fs::read(&files_in(expected.path()).unwrap()[0]).unwrap());
        assert_eq!(check(directory.path()).unwrap().head, head);
    }

    #[test]
    fn a_directory_has_one_writer() {
        let directory = TempDir::new().unwrap();
        let sink = Sink::open(directory.path(), "c", ALL).unwrap();
        let refused = Sink::open(directory.path(), "c", ALL).unwrap_err();
        assert!(refused.to_string().contains("give each node a directory of its own under [audit]"), "{refused}");
        sink.close();
        Sink::open(directory.path(), "c", ALL).unwrap();
    }

    #[test]
    fn other_lines_than_those_in_the_files_are_a_failure() {
        let (directory, _) = files_of(&sound(), ALL);
        let other = entries(&with(|lines| lines[3].wall_ms = Some(9)));
        let sink = Sink::open(directory.path(), "c", ALL).unwrap();
        push(&sink, &other);
        let failed = sink.sync().unwrap_err();
        assert!(failed.to_string().contains("line 12 of the audit files has the hash"), "{failed}");
        assert_eq!(sink.look(), Some(failed));
        // What comes afterwards neither waits nor is kept.
        push(&sink, &other);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_a_failure() {
        let directory = TempDir::new().unwrap();
        let sink = Sink::open(&directory.path().join("audit"), "c", ALL).unwrap();
        fs::remove_dir(directory.path().join("audit")).unwrap();
        push(&sink, &entries(&sound()));
        assert!(sink.sync().is_err());
    }
}

fn of_entry(line: AuditLine<'static>) -> AuditLine<'static> {
    AuditLine { kind: Some("entry".into()), ..line }
}

/// An entry of session 1 holds, those of 2 and 3 wait with their tokens; then 3 has it, since session 2 has ended.
fn sound_entries() -> Vec<AuditLine<'static>> {
    let mode = || Some("exclusive".into());
    vec![
        begun(),
        opened(2, 1),
        opened(2, 2),
        opened(2, 3),
        of_entry(granted(3, 1, 5)),
        of_entry(AuditLine { mode: mode(), ..of_lock(4, AuditEvent::Queued, 2, 7) }),
        of_entry(AuditLine { mode: mode(), ..of_lock(5, AuditEvent::Queued, 3, 9) }),
        // Another lock's grant.
        AuditLine { lock: Some("b".into()), ..granted(6, 1, 10) },
        ended(7, 2),
        of_entry(of_lock(8, AuditEvent::Released, 1, 5)),
        of_entry(granted(8, 3, 9)),
        of_entry(of_lock(9, AuditEvent::Left, 2, 7)),
    ]
}

#[test]
fn locks_of_entries_have_one_holder_and_tokens_that_rise() {
    let of = |change: &dyn Fn(&mut Vec<AuditLine<'static>>)| {
        let mut lines = sound_entries();
        change(&mut lines);
        let (directory, _) = files_of(&lines, ALL);
        check(directory.path())
    };
    assert!(of(&|_| {}).is_ok(), "a waiter has its token before the grants of other locks");
    let is = |change: &dyn Fn(&mut Vec<AuditLine<'static>>), expected: &str| {
        let (_, fault) = broken(of(change));
        assert!(format!("{fault:?}").contains(expected), "{fault:?}");
    };
    is(&|lines| drop(lines.remove(9)), "Exclusion");
    is(&|lines| lines[10].token = Some(8), "Token");
    is(&|lines| lines[10].session = Some(Session(1)), "NotQueued");
    is(&|lines| lines[5].token = Some(5), "Token");
    is(&|lines| lines[10] = of_entry(granted(8, 2, 7)), "NotOpen");
    is(&|lines| lines[11].token = Some(6), "NotQueued");
    is(&|lines| lines[9].token = Some(6), "NotHeld");
    is(&|lines| lines[7] = of_entry(granted(6, 1, 4)), "Exclusion");
    // The one that came first is granted it last.
    let falls = |lines: &mut Vec<AuditLine<'static>>| {
        lines.remove(8);
        lines[10] = of_entry(of_lock(9, AuditEvent::Released, 3, 9));
        lines.push(of_entry(granted(10, 2, 7)));
    };
    is(&falls, "Token { token: 7, before: 9 }");
}
