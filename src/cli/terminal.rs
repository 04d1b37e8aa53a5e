//! The controlling terminal of this process, if it has one.

use std::{
    fs::File,
    io::{self, Write as _},
};

use rustix::{
    process::getpgrp,
    termios::{tcgetpgrp, tcgetwinsize},
};

/// Width in columns, if the terminal does not report one.
const WIDTH_DEFAULT: usize = 80;

/// Whether the process has a controlling terminal, redirected or not.
pub(super) fn is_there() -> bool {
    open().is_ok()
}

/// Whether this process is in the foreground of its terminal and so receives its input.
pub(super) fn in_foreground() -> bool {
    open().is_ok_and(|terminal| tcgetpgrp(&terminal) == Ok(getpgrp()))
}

fn open() -> io::Result<File> {
    File::open("/dev/tty")
}

/// A line of progress at the cursor, on stderr. Erased when it is dropped.
#[derive(Debug, Default)]
pub(super) struct ProgressLine {
    shown: bool,
}

impl ProgressLine {
    /// Shows the text instead of the one before. In the background nothing is shown: it would disturb the foreground program.
    pub(super) fn show(&mut self, text: &str) {
        if !in_foreground() {
            return;
        }
        // A line that wraps cannot be erased.
        let width = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        // Some terminals report no width.
        let width = if width == 0 { WIDTH_DEFAULT } else { width };
        // One column less: some terminals wrap as soon as the last one is written.
        let text: String = text.chars().take(width - 1).collect();
        self.shown = true;
        let _ = write!(io::stderr(), "{ERASE}{text}");
    }
}

/// Moves to the start of the line and erases it.
const ERASE: &str = "\r\x1b[2K";

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown && in_foreground() {
            let _ = write!(io::stderr(), "{ERASE}");
        }
    }
}
