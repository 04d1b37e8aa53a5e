//! The log when the power fails, when the process is killed, and when the disk lies.
//!
//! A child process drives the real store, sled and all, and says in a file what it began and what was acknowledged to it. Below it
//! lies a small layer (`layer.c`, preloaded, so no root is needed) that notes every call that changes a file, in one order with
//! what was said. From such a recording follows what the disk may hold if the power fails after any of its calls: each of these
//! thousands of disks is written out, the real store is opened on it, and what it holds is held against what was acknowledged.
//! The same layer kills the process at a given call, or lets calls fail or hang.
//!
//! * `driver` is the child: appends, votes, truncations, purges, reopening;
//! * `layer` builds the layer and runs a child on it; `trace` reads its records, `recording` has those of several children, and
//!   `disk` is the file system that they describe, with all that a power failure may do to it;
//! * `history` is what was said, and what a store may therefore hold; `trial` opens one and judges it;
//! * `cuts`, `kills`, `faults`, `rot` and `ext4` are the tests.
//!
//! | variable | means |
//! |---|---|
//! | `LOCKKEEPER_CRASH_POINTS` | how many moments of power failure are tried; the other tests grow in proportion |
//! | `LOCKKEEPER_CRASH_SEED` | where the random numbers begin; printed by each test |
//! | `LOCKKEEPER_CRASH_REPLAY` | `FILE:POINT:SEED`, as a failed test prints it: tries that disk alone |
//!
//! ## Left out
//!
//! A disk that reports a sync as done and forgets it nevertheless: no program survives that, and the control shows that it would be
//! noticed here.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "real processes and disks: no simulated time; skipped tests are for people to read"
)]
#![cfg(target_os = "linux")]

mod cuts;
mod disk;
mod driver;
mod ext4;
mod faults;
mod history;
mod kills;
mod layer;
mod recording;
mod rot;
mod support;
mod trace;
mod trial;
