//! Whether bugs that are planted on purpose are found: what the other suites say is worth something only then.
//!
//! * `scenarios`: a bug, the test that finds it, and the message with which this test must fail; `clients`, `nodes`, `replica` and
//!   `snapshots` are such tests that no other suite has, with `alone` as their stage;
//! * `convictions`: bugs that a run of chaos finds as a violation of a property, in the nightly run;
//! * `index`: each bug with where it is convicted, and where the same is seen to hold without it.

mod alone;
mod clients;
mod convictions;
mod index;
mod nodes;
mod replica;
mod scenarios;
mod snapshots;
