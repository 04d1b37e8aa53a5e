//! The log on disk: acknowledged entries survive a restart, and a damaged or older log is refused.

#![expect(clippy::disallowed_methods, reason = "measures real time")]

mod crash;
mod damage;
mod machine;
mod owner;
mod reopening;
mod suite;
mod support;
