//! At a terminal.
