//! The checker is itself tested: by hand-made histories that it must convict, or acquit, for the right reason; and by random ones.

mod histories;
mod mutations;
mod program;
mod random;
mod reference;
