//! The log under power failures, kills, disk errors and corruption.
//!
//! A child process drives the real store, including sled, and reports to a file the operations begun and acknowledged. A small layer
//! below it (`layer.c`, preloaded, so no root is needed) records every call that changes a file, in one order with these reports.
//! From such a recording, the tests compute the possible contents of the disk if the power fails after any of its calls: each of
//! these thousands of disks is written out, the real store is opened on it, and its contents are compared with the acknowledgements.
//! The same layer kills the process at a given call, or lets calls fail or hang.
//!
//! * `driver` is the child: appends, votes, truncations, purges, reopening;
//! * `layer` builds the layer and runs a child on it; `trace` reads its records, `recording` has those of several children, and
//!   `disk` is the file system that they describe, with the possible effects of a power failure;
//! * `history` has the child's reports and the states that they permit; `trial` opens a store and judges it;
//! * `cuts`, `kills`, `faults`, `rot` and `ext4` are the tests.
//!
//! | variable | means |
//! |---|---|
//! | `LOCKKEEPER_CRASH_POINTS` | number of simulated power failures; the other tests scale in proportion |
//! | `LOCKKEEPER_CRASH_SEED` | seed of the random numbers; printed by each test |
//! | `LOCKKEEPER_CRASH_REPLAY` | `FILE:POINT:SEED`, as a failed test prints it: tries only that disk |
//!
//! ## Left out
//!
//! A disk that reports a sync as done and loses it nevertheless: no program survives that, and the control shows that these tests would
//! detect it.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "real processes and disks: no simulated time; skipped tests are for people to read"
)]
#![cfg(target_os = "linux")]

mod cuts;
pub(crate) mod disk;
mod driver;
mod ext4;
mod faults;
mod history;
mod kills;
mod layer;
mod recording;
mod rot;
mod support;
pub(crate) mod trace;
mod trial;
