//! Lockkeeper's own clients in other languages: a smoke of each in the check. Their own tests are run by `scripts/nightly.sh`.

mod python;
