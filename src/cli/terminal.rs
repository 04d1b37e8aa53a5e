//! The terminal that this process belongs to, if it belongs to one.

use std::{fs::File, io};

use rustix::{process::getpgrp, termios::tcgetpgrp};

/// There is one, be it that of stdin, or of none of the three.
pub(super) fn is_there() -> bool {
    open().is_ok()
}

/// This process is in its foreground: what is typed there is meant for it.
pub(super) fn in_foreground() -> bool {
    open().is_ok_and(|terminal| tcgetpgrp(&terminal) == Ok(getpgrp()))
}

fn open() -> io::Result<File> {
    File::open("/dev/tty")
}
