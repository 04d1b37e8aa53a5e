//! What people should read when sled panics.
//!
//! sled panics on some damaged files, and on some errors of the disk. Where panics unwind, the opening turns one into an error. Where they
//! end the process, as they do in the program, its message would be some assertion deep inside sled; so the program asks here, in its
//! panic hook, [what a panic means](explain_panic) and what to do.
//!
//! sled also has threads of its own. A panic there reaches nobody; the rest waits for what never comes.

use std::{
    any::Any,
    cell::RefCell,
    panic::PanicHookInfo,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
};

/// What a thread does to a log's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doing {
    /// Whatever it meets, the files are to be blamed for it.
    Opening,
    /// All of the files was read and checked.
    Serving,
}

thread_local! {
    static HERE: RefCell<Option<(PathBuf, Doing)>> = const { RefCell::new(None) };
}

/// The latest of all threads, for those of sled.
static LATEST: Mutex<Option<(PathBuf, Doing)>> = Mutex::new(None);

/// For as long as it lives, a panic of this thread is explained.
pub(super) struct Advice(());

/// Explains a panic of this thread, and of sled's, by the log in this directory.
pub(super) fn advise(directory: &Path, doing: Doing) -> Advice {
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
pub(super) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// Whether a panic, or an error, says that the disk is full. sled wraps those of the system, so only the words are left.
pub(super) fn tells_of_full_disk(message: &impl ToString) -> bool {
    let message = message.to_string();
    ["StorageFull", "No space left", "QuotaExceeded", "quota exceeded"].iter().any(|words| message.contains(words))
}

/// What a panic means that came from a log's files, and what to do. `None`: it is a mistake of the program.
pub fn explain_panic(panic: &PanicHookInfo<'_>) -> Option<String> {
    let is_of_sled = panic.location().is_some_and(|location| location.file().contains("sled-0."));
    // A thread that ends may have no such variable any more.
    let here = HERE.try_with(|here| here.try_borrow().ok()?.clone()).ok().flatten();
    let (directory, doing) = match here {
        Some(here) => here,
        // This one may be the thread that has it.
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
    if tells_of_full_disk(&panic) {
        return format!("the log in {directory} cannot be written: the disk is full: {FREE_SPACE} ({panic})");
    }
    let first = match doing {
        // It does so too when a sync fails. Then the disk is to be mended, not the cluster.
        Doing::Opening => "unless that is an error of the disk itself, do not start this member on it again",
        Doing::Serving => "start this member again; if that repeats, the files are damaged",
    };
    format!(
        "the log in {directory} is damaged: sled panicked on it: {panic}; {first}: remove the member from the cluster, then add a \
         new one with a new id and an empty directory"
    )
}

/// What to do about a full disk.
pub(super) const FREE_SPACE: &str =
    "nothing that was acknowledged is lost; free some space, then start this member again";

#[cfg(test)]
mod tests {
    use std::{
        env, panic,
        process::{self, Command, Output},
    };

    use super::*;

    const CHILD: &str = "LOCKKEEPER_TEST_PANICS_AS";

    /// Runs itself once more, as the process in which a thread of this name panics.
    fn panic_as(thread: &str) -> Output {
        let name = "raft::log::panics::tests::a_panic_of_who_opens_is_explained_and_none_of_others";
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
        let what = if thread.contains("full") { "StorageFull" } else { "tried to serialize Uninitialized" };
        if thread.starts_with("here") {
            panic!("{what}");
        }
        let _ = thread::Builder::new().name(thread).spawn(move || panic!("{what}")).expect("started").join();
    }

    #[test]
    fn a_panic_of_who_opens_is_explained_and_none_of_others() {
        if let Ok(thread) = env::var(CHILD) {
            return be_child(thread);
        }
        for (thread, explained) in [
            ("here", "remove the member"),
            ("sled-io-1", "remove the member"),
            ("sled-io-full", "free some space"),
            // Those two are mistakes of ours.
            ("here-serving", "explained: no"),
            ("another", "explained: no"),
        ] {
            let said = String::from_utf8(panic_as(thread).stdout).expect("text");
            assert!(said.contains(explained), "{thread}: {said}");
            assert!(explained.ends_with("no") || said.contains("/some/log"), "{thread}: {said}");
        }
    }
}
