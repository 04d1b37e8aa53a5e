//! What people should read when sled panics.
//!
//! sled panics on some damaged files. Where panics unwind, the opening turns that into an error. Where they end the process, as
//! they do in the program, its message would be some assertion deep inside sled; so threads that touch sled's files say first what
//! it means and what to do.

use std::{
    any::Any,
    cell::RefCell,
    panic,
    path::{Path, PathBuf},
    sync::Once,
};

thread_local! {
    static DIRECTORY: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// For as long as it lives, a panic of this thread is explained.
pub(super) struct Advice(());

/// Explains a panic of this thread by the log in this directory.
pub(super) fn advise(directory: &Path) -> Advice {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let next = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            explain();
            next(panic);
        }));
    });
    DIRECTORY.set(Some(directory.to_owned()));
    Advice(())
}

impl Drop for Advice {
    fn drop(&mut self) {
        DIRECTORY.set(None);
    }
}

/// The message of a panic that was caught.
pub(super) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

fn explain() {
    // A thread that ends may have no such variable any more.
    let directory = DIRECTORY.try_with(|directory| directory.try_borrow().ok()?.clone());
    if let Ok(Some(directory)) = directory {
        eprintln!(
            "lockkeeper: sled is about to panic on the log in {}. If that repeats, the files are damaged: remove the member from the \
             cluster, then add a new one with a new id and an empty directory.",
            directory.display()
        );
    }
}
