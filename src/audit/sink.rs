//! The thread that writes the files, behind a bounded buffer.
//!
//! Entries are applied without waiting for the disk as long as the buffer has room. Without room the applier waits, so no
//! line is lost. A line that was not on the disk when the node crashed is made again, because the entries after the newest
//! snapshot are applied again. Therefore the files must be synced before a snapshot counts ([`Sink::sync`]), and not more
//! often. Lines that the files have already are skipped.
//!
//! A simulation has one thread, and its runs must repeat. There, the sink has no thread ([`Sink::simulate`]): what waits is written by the
//! next [`Sink::look`], and by [`Sink::sync`] before it returns.

#[cfg(debug_assertions)]
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Weak,
        atomic::{AtomicBool, Ordering},
    },
};
use std::{
    collections::VecDeque,
    io,
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use super::{
    chain::{Hash, Head, split},
    files::{AuditWriter, FileError, Position, Rotation},
    line::AuditLine,
};
use lockkeeper_planted::Planted;

/// The number of bytes that may wait for the disk. Above it, the applier waits.
pub const BUFFER_BYTES_MAX: usize = 8 << 20;
/// The number of looks ([`Sink::look`]) that find the same write under way before it counts as stalled: 10 s, as for the log.
///
/// Looks are counted instead of reading a clock, because a suspended process must not count as stalled.
const STALLED_LOOKS: u32 = 40;
/// How long the end of a node waits for the last lines.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// The place of a group of lines in the chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainPlace {
    /// The head before the lines.
    pub before: Head,
    /// The head after them.
    pub after: Head,
    /// The last token that was issued before the lines.
    pub token: u64,
    /// The last ticket that was issued before the lines.
    pub ticket: u64,
}

/// Why the trail is no longer written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct SinkError(String);

impl SinkError {
    fn closed() -> Self {
        let text =
            "the audit files were closed before the last lines were written; the next start of this node writes them";
        Self(text.to_owned())
    }
}

/// The audit files of a node. Clones share them.
#[derive(Clone, Debug)]
pub struct Sink {
    shared: Arc<SharedBuffer>,
}

#[derive(Debug, Default)]
struct SharedBuffer {
    state: Mutex<BufferState>,
    changed: Condvar,
    /// Writes the files if there is no thread for it. It is taken before the state is.
    in_place: Mutex<Option<AuditWriter>>,
}

#[derive(Debug, Default)]
struct BufferState {
    groups: VecDeque<(ChainPlace, Vec<u8>)>,
    bytes: usize,
    /// Lines up to this one are wanted on the disk.
    sync_wanted: u64,
    /// Lines up to this one were handed over.
    handed: u64,
    /// Lines up to this one are on the disk.
    synced: u64,
    /// Incremented when the thread begins and ends work on the disk. It is odd while the thread works.
    steps: u64,
    /// The step at the last look.
    seen_step: u64,
    /// The number of looks in a row that found the same step under way.
    stalled_looks: u32,
    is_closing: bool,
    is_closed: bool,
    failed: Option<SinkError>,
}

/// Whether the sinks of this process have no thread.
#[cfg(debug_assertions)]
static SIMULATED: AtomicBool = AtomicBool::new(false);

/// The last sink without a thread in each directory.
#[cfg(debug_assertions)]
static IN_PLACE: Mutex<BTreeMap<PathBuf, Weak<SharedBuffer>>> = Mutex::new(BTreeMap::new());

impl Sink {
    /// Time between two calls of [`Self::look`].
    pub const LOOK: Duration = Duration::from_millis(250);

    /// From now on, the sinks of this process have no thread: lines are written, and the disk is waited for, on the threads of the callers.
    /// A dropped sink writes nothing more, as after a crash. For simulations; it is not there in a release.
    #[cfg(debug_assertions)]
    pub fn simulate() {
        SIMULATED.store(true, Ordering::Relaxed);
    }

    /// Opens or creates the directory, and starts the thread. Blocks. `cluster` is the id, which the files name.
    pub fn open(directory: &Path, cluster: &str, rotation: Rotation) -> Result<Self, FileError> {
        let shared = Arc::new(SharedBuffer::default());

        #[cfg(debug_assertions)]
        if SIMULATED.load(Ordering::Relaxed) {
            shared.take_over(directory);
            *shared.writer() = Some(AuditWriter::open(directory, cluster, rotation)?);
            return Ok(Self { shared });
        }

        let writer = AuditWriter::open(directory, cluster, rotation)?;

        let of_thread = Arc::clone(&shared);
        let spawned = thread::Builder::new().name("audit".to_owned()).spawn(move || of_thread.run(writer));
        spawned.map_err(FileError::io(directory))?;
        Ok(Self { shared })
    }

    /// Hands lines over. Waits while the buffer is full. After a failure or the end it returns at once, and drops the lines: the node ends
    /// then, and makes them again when it starts. Until then, [`Self::sync`] fails.
    pub fn push(&self, place: ChainPlace, lines: Vec<u8>) {
        let mut state = self.shared.lock();

        if state.bytes >= BUFFER_BYTES_MAX && state.failed.is_none() {
            tracing::warn!(
                bytes = state.bytes,
                "the audit files are written too slowly: applying entries waits for them"
            );

            drop(state);
            self.shared.work_in_place();
            state = self.shared.lock();
            while state.bytes >= BUFFER_BYTES_MAX && state.failed.is_none() {
                state = self.shared.wait(state);
            }
        }

        // Lines that are dropped count as handed over, so that no sync vouches for them.
        state.handed = place.after.lines;
        if state.failed.is_some() || state.is_closed {
            return;
        }

        state.bytes += lines.len();
        state.groups.push_back((place, lines));

        drop(state);
        self.shared.changed.notify_all();
    }

    /// Whether half of the buffer is in use. Work that may wait should not run then.
    pub fn is_behind(&self) -> bool {
        self.shared.lock().bytes >= BUFFER_BYTES_MAX / 2
    }

    /// Waits until all lines that were handed over are on the disk. Fails if some of them are not, and no longer will be. Blocks.
    pub fn sync(&self) -> Result<(), SinkError> {
        let mut state = self.shared.lock();
        let wanted = state.handed;
        state.sync_wanted = state.sync_wanted.max(wanted);
        drop(state);
        self.shared.changed.notify_all();
        self.shared.work_in_place();

        let mut state = self.shared.lock();
        while state.synced < wanted && state.failed.is_none() && !state.is_closed {
            state = self.shared.wait(state);
        }

        match &state.failed {
            Some(failed) => Err(failed.clone()),
            None if state.synced < wanted && !Planted::ClosedSinkVouches.is_on() => Err(SinkError::closed()),
            None => Ok(()),
        }
    }

    /// The failure, once there is one. The node looks every [`Self::LOOK`]: a write that did not return for many looks is a failure,
    /// because the applier would wait for it without an end, and with a leader's applier the whole cluster.
    pub fn look(&self) -> Option<SinkError> {
        self.shared.work_in_place();
        let mut state = self.shared.lock();

        let is_writing = state.steps % 2 == 1 && !Planted::HungAuditDiskAwaited.is_on();
        let is_stuck = is_writing && state.steps == state.seen_step;
        state.seen_step = state.steps;
        state.stalled_looks = if is_stuck { state.stalled_looks + 1 } else { 0 };

        if state.stalled_looks >= STALLED_LOOKS && state.failed.is_none() {
            let patience = Self::LOOK * STALLED_LOOKS;
            state.failed = Some(SinkError(format!("the disk of the audit files did not answer for {patience:?}")));
            // Whoever waits for room or for a sync does not wait any longer.
            self.shared.changed.notify_all();
        }

        state.failed.clone()
    }

    /// Writes what was handed over, and ends the thread. Blocks for a few seconds at most, and not at all after a failure.
    pub fn close(&self) {
        self.shared.lock().is_closing = true;
        self.shared.changed.notify_all();
        self.shared.close_in_place();

        let state = self.shared.lock();
        let open = |state: &mut BufferState| !state.is_closed && state.failed.is_none();
        let (_state, timeout) =
            self.shared.changed.wait_timeout_while(state, CLOSE_MAX, open).unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            tracing::warn!("the last audit lines were not written yet; they are written at the next start");
        }
    }
}

impl BufferState {
    fn has_work(&self) -> bool {
        !self.groups.is_empty() || self.sync_wanted > self.synced || self.is_closing
    }
}

impl SharedBuffer {
    fn lock(&self) -> MutexGuard<'_, BufferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, Option<AuditWriter>> {
        self.in_place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, BufferState>) -> MutexGuard<'a, BufferState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut writer: AuditWriter) {
        let failed = self.write_all(&mut writer).err();
        // The directory must be free before the end is announced.
        drop(writer);
        self.end(failed);
    }

    /// Announces that nothing more is written.
    fn end(&self, failed: Option<FileError>) {
        let mut state = self.lock();
        if let Some(error) = failed {
            state.failed = Some(SinkError(error.to_string()));
        }
        state.is_closed = true;
        state.groups.clear();
        state.bytes = 0;
        drop(state);
        self.changed.notify_all();
    }

    fn write_all(&self, writer: &mut AuditWriter) -> Result<(), FileError> {
        loop {
            let mut state = self.lock();
            while !state.has_work() {
                state = self.wait(state);
            }

            // A stalled write that returned after all: the node has given up the files by now.
            if state.failed.is_some() {
                return Ok(());
            }
            let is_closing = state.is_closing;
            self.write_waiting(writer, state)?;
            if is_closing && self.lock().groups.is_empty() {
                return Ok(());
            }
        }
    }

    /// Writes the lines that wait, and syncs the files if somebody wants it.
    fn write_waiting(&self, writer: &mut AuditWriter, mut state: MutexGuard<'_, BufferState>) -> Result<(), FileError> {
        state.steps += 1;
        let groups = std::mem::take(&mut state.groups);
        let is_sync_wanted = state.sync_wanted > state.synced || state.is_closing;
        let handed = state.handed;
        drop(state);

        let mut written = 0;
        for (place, lines) in groups {
            written += lines.len();
            write_new(writer, place, &lines)?;
        }

        if is_sync_wanted {
            writer.sync()?;
        }

        let mut state = self.lock();
        state.steps += 1;
        state.bytes -= written;
        if is_sync_wanted {
            state.synced = handed;
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Takes the files from the sink before it in this directory, as the end of its process does: something may have that sink still.
    #[cfg(debug_assertions)]
    fn take_over(self: &Arc<Self>, directory: &Path) {
        let mut sinks = IN_PLACE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = sinks.insert(directory.to_owned(), Arc::downgrade(self)).and_then(|it| it.upgrade()) {
            *before.writer() = None;
        }
    }

    /// Does now what the thread would do, if there is none.
    fn work_in_place(&self) {
        let mut writer = self.writer();
        let Some(open) = writer.as_mut() else { return };
        let state = self.lock();
        if state.failed.is_some() || !state.has_work() {
            return;
        }
        if let Err(error) = self.write_waiting(open, state) {
            *writer = None;
            self.end(Some(error));
        }
    }

    /// Writes what waits, and ends, if there is no thread.
    fn close_in_place(&self) {
        self.work_in_place();
        if self.writer().take().is_some() {
            self.end(None);
        }
    }
}

/// Writes those of the lines that the files do not have yet.
fn write_new(writer: &mut AuditWriter, place: ChainPlace, lines: &[u8]) -> Result<(), FileError> {
    let ChainPlace { before, after, token, ticket } = place;
    let Some(last) = writer.last.filter(|last| last.lines >= before.lines) else {
        return writer.write(Position { head: before, token, ticket }, lines, after);
    };

    if after.lines < last.lines {
        return Ok(());
    }

    // The lines of one entry may have been written in part. Skip those that were.
    let skipped = usize::try_from(last.lines - before.lines).unwrap_or(usize::MAX);
    let texts = || lines.split_inclusive(|byte| *byte == b'\n');
    let known = match skipped.checked_sub(1) {
        None => Some(before.hash),
        Some(at) => texts().nth(at).and_then(hash_of),
    };

    if known != Some(last.hash) {
        let text = format!(
            "line {} of the audit files has the hash {}, and the cluster's log gives {}: the files were changed, or are another \
             cluster's; move them out of the directory, and keep them",
            last.lines,
            last.hash,
            known.map(|hash| hash.to_string()).unwrap_or_default()
        );
        return Err(FileError::io(Path::new("[audit] directory"))(io::Error::other(text)));
    }

    let bytes: usize = texts().take(skipped).map(<[u8]>::len).sum();
    if bytes == lines.len() {
        return Ok(());
    }

    // A file may begin in the middle of the entry, so its header needs the last numbers that were issued there.
    let issued = texts()
        .take(skipped)
        .filter_map(|text| AuditLine::parse(&split(str::from_utf8(text).ok()?.trim_end())?.0).ok());
    let (token, ticket) = issued.fold((token, ticket), |(token, ticket), line| {
        (token.max(line.token.unwrap_or_default()), ticket.max(line.ticket.unwrap_or_default()))
    });

    writer.write(Position { head: last, token, ticket }, &lines[bytes..], after)
}

fn hash_of(line: &[u8]) -> Option<Hash> {
    split(str::from_utf8(line).ok()?.trim_end()).map(|(_, hash)| hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sink whose thread works on the disk for ever.
    fn stalled() -> Sink {
        let state = BufferState { steps: 7, bytes: BUFFER_BYTES_MAX, ..BufferState::default() };
        Sink { shared: Arc::new(SharedBuffer { state: Mutex::new(state), ..SharedBuffer::default() }) }
    }

    #[test]
    fn a_disk_that_does_not_answer_is_a_failure_and_nobody_waits_for_it() {
        let sink = stalled();
        let head = Head { lines: 1, hash: Head::genesis("c").hash };
        let place = ChainPlace { before: Head::genesis("c"), after: head, token: 0, ticket: 0 };
        let applier = thread::spawn({
            let sink = sink.clone();
            move || sink.push(place, b"{}\n".to_vec())
        });

        for _ in 0..STALLED_LOOKS {
            assert_eq!(sink.look(), None);
        }
        let failure = sink.look().unwrap();
        assert_eq!(failure.to_string(), "the disk of the audit files did not answer for 10s");
        applier.join().unwrap();
        assert_eq!(sink.sync(), Err(failure));
        sink.close();
    }

    #[test]
    fn work_that_goes_on_and_a_sink_without_work_are_not_stalled() {
        let sink = stalled();
        for _ in 0..10 * STALLED_LOOKS {
            sink.shared.lock().steps += 2;
            assert_eq!(sink.look(), None);
        }

        let directory = tempfile::tempdir().unwrap();
        let rotation = Rotation { file_bytes: u64::MAX, files_kept: 0 };
        let idle = Sink::open(directory.path(), "c", rotation).unwrap();
        let before = Head::genesis("c");
        let mut after = before;
        let mut line = Vec::new();
        after.push(AuditLine::new(super::super::AuditEvent::Begun), &mut line);
        idle.push(ChainPlace { before, after, token: 0, ticket: 0 }, line);
        idle.sync().unwrap();
        for _ in 0..2 * STALLED_LOOKS {
            assert_eq!(idle.look(), None);
        }
        let steps = idle.shared.lock().steps;
        assert!(steps >= 2 && steps.is_multiple_of(2), "{steps}");
        idle.close();
    }

    fn writer(directory: &Path) -> AuditWriter {
        AuditWriter::open(directory, "c", Rotation { file_bytes: u64::MAX, files_kept: 0 }).unwrap()
    }

    /// The same as in a simulation; [`Sink::simulate`] would change the sinks of all tests of this process.
    fn without_thread(directory: &Path) -> Sink {
        let writer = writer(directory);
        Sink { shared: Arc::new(SharedBuffer { in_place: Mutex::new(Some(writer)), ..SharedBuffer::default() }) }
    }

    fn push_next(sink: &Sink, head: &mut Head) {
        let before = *head;
        let mut line = Vec::new();
        head.push(AuditLine::new(super::super::AuditEvent::Note), &mut line);
        sink.push(ChainPlace { before, after: *head, token: 0, ticket: 0 }, line);
    }

    #[test]
    fn without_a_thread_lines_are_written_by_the_looks_and_a_dropped_sink_writes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let written = || writer(directory.path()).last;
        let mut head = Head::genesis("c");

        let sink = without_thread(directory.path());
        push_next(&sink, &mut head);
        assert_eq!(sink.look(), None);
        let looked_at = head;
        push_next(&sink, &mut head);
        drop(sink);
        assert_eq!(written(), Some(looked_at));

        // A sync and the end write what waits. A node that starts again makes its lines again.
        let mut head = looked_at;
        let sink = without_thread(directory.path());
        push_next(&sink, &mut head);
        sink.sync().unwrap();
        push_next(&sink, &mut head);
        sink.close();
        assert_eq!(written(), Some(head), "the directory is free, though the sink is still there");
        assert_eq!(sink.look(), None);
    }

    #[test]
    fn a_sync_does_not_vouch_for_lines_that_a_closed_sink_dropped() {
        let rotation = Rotation { file_bytes: u64::MAX, files_kept: 0 };
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let sinks = [without_thread(directories[0].path()), Sink::open(directories[1].path(), "c", rotation).unwrap()];

        for (sink, directory) in sinks.iter().zip(&directories) {
            let mut head = Head::genesis("c");
            push_next(sink, &mut head);
            sink.close();
            assert_eq!(sink.sync(), Ok(()), "the end has written them");

            let written = head;
            push_next(sink, &mut head);
            assert_eq!(sink.sync(), Err(SinkError::closed()));
            assert_eq!(writer(directory.path()).last, Some(written));
        }
    }

    /// Lines that come between the thread's last look and its end.
    #[test]
    fn a_sync_does_not_vouch_for_lines_that_the_end_found_waiting() {
        let sink = Sink { shared: Arc::default() };
        push_next(&sink, &mut Head::genesis("c"));
        sink.shared.end(None);
        assert_eq!(sink.sync(), Err(SinkError::closed()));
    }

    #[test]
    fn without_a_thread_a_full_buffer_is_written_by_the_applier() {
        let directory = tempfile::tempdir().unwrap();
        let sink = without_thread(directory.path());
        let mut head = Head::genesis("c");
        push_next(&sink, &mut head);
        sink.shared.lock().bytes = BUFFER_BYTES_MAX;
        push_next(&sink, &mut head);

        let state = sink.shared.lock();
        assert_eq!((state.groups.len(), state.steps), (1, 2));
    }
}
