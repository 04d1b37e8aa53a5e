//! Tests of the checker: hand-made histories with an expected verdict and evidence, and random ones.

mod histories;
mod mutations;
mod program;
mod random;
mod reference;
