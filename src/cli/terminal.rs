//! The controlling terminal of this process, if it has one.

use std::{fs::File, io};

use rustix::{process::getpgrp, termios::tcgetpgrp};

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
