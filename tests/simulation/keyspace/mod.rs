//! The keyspace in a simulated run: clients that send everything that it can be asked, and a judge of all answers.
//!
//! * `words`: every variant and option of the service's own types; `grammar`: draws requests from them;
//! * `writer`: a client process, which sends them to the nodes' own service of the keyspace, and watches;
//! * `recorded`: transactions and watches of a plain form, for the checker of histories;
//! * `truth`: the events that happened, in the order of the log; `model`: what an answer must have been;
//! * `watches`: what a watch must have sent; `judge`: collects what clients saw, and compares it.

pub(crate) mod grammar;
pub(crate) mod judge;
mod model;
mod recorded;
pub(crate) mod truth;
pub(crate) mod watches;
pub(crate) mod words;
pub(crate) mod writer;
