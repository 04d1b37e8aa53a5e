//! Where time and chance come from.
//!
//! No other place reads a clock or draws a random number, so that a simulation can put its own in their place (together with
//! paused tokio time, which the timers of the whole program follow).

use std::{
    fmt::Debug,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use rand::{RngCore, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

/// Clocks.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Monotonic time of this process. Decides; never compared between machines.
    fn now(&self) -> Instant;

    /// Milliseconds since 1970-01-01 UTC. For people to read; nothing is decided by it.
    fn wall_ms(&self) -> u64;
}

/// Chance.
pub trait Random: Debug + Send + Sync + 'static {
    /// 128 random bits.
    fn bits(&self) -> u128;
}

/// The clock and the random source of one node.
#[derive(Clone, Debug)]
pub struct Environment {
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// What comes by chance.
    pub random: Arc<dyn Random>,
}

impl Environment {
    /// That of a real machine.
    pub fn system() -> Self {
        Self { clock: Arc::new(SystemClock), random: Arc::new(SystemRandom) }
    }

    /// A generator of random numbers for those who want one, seeded from this chance.
    pub fn generator(&self) -> impl RngCore + use<> {
        let mut seed = [0; 32];
        seed[..16].copy_from_slice(&self.random.bits().to_be_bytes());
        seed[16..].copy_from_slice(&self.random.bits().to_be_bytes());
        StdRng::from_seed(seed)
    }
}

#[derive(Debug)]
struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall_ms(&self) -> u64 {
        // A clock before 1970 is wrong, and shown as 1970: only people read it.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}

#[derive(Debug)]
struct SystemRandom;

impl Random for SystemRandom {
    fn bits(&self) -> u128 {
        rand::random()
    }
}
