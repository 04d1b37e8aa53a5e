//! The protocol, over a store in memory.

mod wire;
