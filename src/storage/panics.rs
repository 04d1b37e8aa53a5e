//! Explanations for panics of sled.
//!
//! sled panics on some damaged files, and on some errors of the disk. Where panics unwind, the opening turns one into an error. In the
//! program panics end the process, and the message would be an assertion deep inside sled; so the program's panic hook asks here [what a
//! panic means](explain_panic) and what to do.
//!
//! sled also has threads of its own. No caller learns of a panic there, and callers wait for ever.

use std::{
    any::Any,
    cell::RefCell,
    fmt,
    panic::PanicHookInfo,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
};

/// The phase in which a thread uses a log's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// The files are being checked: any panic is blamed on them.
    Opening,
    /// The files were read and checked before.
    Serving,
}

thread_local! {
    static HERE: RefCell<Option<(PathBuf, Doing)>> = const { RefCell::new(None) };
}

/// The latest registration of any thread, for sled's own threads.
static LATEST: Mutex<Option<(PathBuf, Doing)>> = Mutex::new(None);

/// While it lives, a panic of this thread is explained.
pub struct Advice(());

/// Registers this thread, and sled's threads: a panic is explained by the log in this directory.
pub fn advise(directory: &Path, doing: Doing) -> Advice {
    HERE.set(Some((directory.to_owned(), doing)));
    *LATEST.lock().unwrap_or_else(PoisonError::into_inner) = Some((directory.to_owned(), doing));
    Advice(())
}

impl Drop for Advice {
    fn drop(&mut self) {
        HERE.set(None);
    }
}

/// The message of a panic that was caught.
pub fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// Whether a panic or an error says that the disk is full. sled wraps the system's errors, so only their text is left.
pub fn tells_of_full_disk(message: &impl ToString) -> bool {
    let message = message.to_string();
    ["StorageFull", "No space left", "QuotaExceeded", "quota exceeded"].iter().any(|words| message.contains(words))
}

/// Why nothing more can be written to a disk that works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRoom {
    /// The disk, or a quota, is full.
    Disk,
    /// A file is as large as this process may make it (RLIMIT_FSIZE).
    FileSize,
}

impl NoRoom {
    /// What a panic or an error says of it.
    pub fn told_by(message: &impl ToString) -> Option<Self> {
        let message = message.to_string();
        let is_file_size = ["FileTooLarge", "File too large"].iter().any(|words| message.contains(words));
        if tells_of_full_disk(&message) { Some(Self::Disk) } else { is_file_size.then_some(Self::FileSize) }
    }
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk => write!(f, "the disk is full: {FREE_SPACE}"),
            Self::FileSize => write!(f, "a file is as large as this process may make it: {RAISE_FILE_LIMIT}"),
        }
    }
}

/// What a panic means that was caused by a log's files, and what to do. `None` means that it is a bug of the program.
pub fn explain_panic(panic: &PanicHookInfo<'_>) -> Option<String> {
    let is_of_sled = panic.location().is_some_and(|location| location.file().contains("sled-0."));
    // In a thread that ends, this variable may be destroyed already.
    let here = HERE.try_with(|here| here.try_borrow().ok()?.clone()).ok().flatten();
    let (directory, doing) = match here {
        Some(here) => here,
        // This thread may hold the lock itself.
        None if is_sleds_own() => LATEST.try_lock().ok()?.clone()?,
        None => return None,
    };
    if !is_of_sled && doing == Doing::Serving {
        return None;
    }
    let message = panic.payload_as_str().unwrap_or("no message");
    let at =
        panic.location().map_or_else(String::new, |location| format!(" ({}:{})", location.file(), location.line()));
    Some(advice(&directory, doing, &format!("{message}{at}")))
}

fn is_sleds_own() -> bool {
    thread::current().name().is_some_and(|name| name.starts_with("sled"))
}

fn advice(directory: &Path, doing: Doing, panic: &str) -> String {
    let directory = directory.display();
    if let Some(no_room) = NoRoom::told_by(&panic) {
        return format!("the log in {directory} cannot be written: {no_room} ({panic})");
    }
    let first = match doing {
        // sled also panics when a sync fails. Then the disk must be repaired; the log may be intact.
        Doing::Opening => "unless the disk itself reports errors, do not start this node on it again",
        Doing::Serving => "start this node again; if that repeats, the files are damaged",
    };
    format!(
        "the log in {directory} is damaged: sled panicked on it: {panic}; {first}: replace this node with `lockkeeper member replace`"
    )
}

/// The remedy for a full disk.
pub const FREE_SPACE: &str = "no acknowledged write is lost; free some space, then start this node again";

/// The remedy for a limit of the size of files.
pub const RAISE_FILE_LIMIT: &str = "no acknowledged write is lost; raise the limit (`ulimit -f unlimited`, or `LimitFSIZE=infinity` \
    in the unit of systemd), then start this node again";

#[cfg(test)]
mod tests {
    use std::{
        env, panic,
        process::{self, Command, Output},
    };

    use super::*;

    const CHILD: &str = "LOCKKEEPER_TEST_PANICS_AS";

    /// Runs this test again, in a child process in which a thread of this name panics.
    fn panic_as(thread: &str) -> Output {
        let name = "panics::tests::a_panic_while_opening_is_explained_and_no_other";
        Command::new(env::current_exe().expect("known"))
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, thread)
            .output()
            .expect("it runs")
    }

    fn be_child(thread: String) {
        panic::set_hook(Box::new(|panic| {
            println!("explained: {}", explain_panic(panic).unwrap_or_else(|| "no".to_owned()));
            process::exit(0);
        }));
        let doing = if thread.ends_with("serving") { Doing::Serving } else { Doing::Opening };
        let _advice = advise(Path::new("/some/log"), doing);
        let what = match &thread {
            thread if thread.contains("full") => "StorageFull",
            thread if thread.contains("limit") => "File too large",
            _ => "tried to serialize Uninitialized",
        };
        if thread.starts_with("here") {
            panic!("{what}");
        }
        let _ = thread::Builder::new().name(thread).spawn(move || panic!("{what}")).expect("started").join();
    }

    #[test]
    fn a_panic_while_opening_is_explained_and_no_other() {
        if let Ok(thread) = env::var(CHILD) {
            return be_child(thread);
        }
        for (thread, explained) in [
            ("here", "replace this node"),
            ("sled-io-1", "replace this node"),
            ("sled-io-full", "free some space"),
            ("sled-io-limit", "ulimit -f"),
            // These two are bugs of the program.
            ("here-serving", "explained: no"),
            ("another", "explained: no"),
        ] {
            let said = String::from_utf8(panic_as(thread).stdout).expect("text");
            assert!(said.contains(explained), "{thread}: {said}");
            assert!(explained.ends_with("no") || said.contains("/some/log"), "{thread}: {said}");
        }
    }
}
