//! Jumps of a node's wall clock.

use std::{fs, io, path::PathBuf, time::Duration};

use tokio::time::Instant;

use super::inject::{BETWEEN_LOOKS, World};

/// Offset of a wall clock jump.
const JUMP: &str = "+7h";
const NO_JUMP: &str = "+0";
/// A wall clock that gained more than this between two looks, which take seconds, has jumped.
const JUMP_MIN: Duration = Duration::from_secs(3_600);

impl World {
    /// The file with a node's clock offset, if it runs under libfaketime.
    fn clock_file(&self, id: u64) -> PathBuf {
        self.cluster.path().join(format!("node{id}")).join("clock")
    }

    /// Lets the wall clock of a node jump. Returns whether the node's own time has: the library that fakes it may do nothing in the node.
    pub(super) async fn jump_clock(&mut self, id: u64, until: Instant) -> io::Result<bool> {
        let Some(before) = self.wall_clock_by(id, until).await else { return Ok(false) };
        self.set_clock(id, JUMP)?;
        while self.goes_on(until) {
            if self.wall_clock(id).await.is_some_and(|now| has_jumped(before, now)) {
                return Ok(true);
            }
            self.rest_until(Instant::now() + BETWEEN_LOOKS).await;
        }
        Ok(false)
    }

    /// The time of a node's wall clock, as soon as the node tells it: on a busy machine it does not answer every time.
    async fn wall_clock_by(&self, id: u64, until: Instant) -> Option<Duration> {
        while self.goes_on(until) {
            let wall = self.wall_clock(id).await;
            if wall.is_some() {
                return wall;
            }
            self.rest_until(Instant::now() + BETWEEN_LOOKS).await;
        }
        None
    }

    /// The time of a node's wall clock since 1970, if the node tells it.
    async fn wall_clock(&self, id: u64) -> Option<Duration> {
        let status = self.cluster.node(id).status().await.ok()?;
        Some(Duration::from_millis(status.wall_unix_ms)).filter(|wall| !wall.is_zero())
    }

    /// Ends the jump of a node's wall clock.
    pub(super) fn reset_clock(&self, id: u64) -> io::Result<()> {
        self.set_clock(id, NO_JUMP)
    }

    fn set_clock(&self, id: u64, jump: &str) -> io::Result<()> {
        match self.tools.libfaketime() {
            Some(_) => fs::write(self.clock_file(id), jump),
            None => Ok(()),
        }
    }
}

/// Whether a wall clock has jumped between two looks.
fn has_jumped(before: Duration, now: Duration) -> bool {
    now.saturating_sub(before) > JUMP_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_goes_on_has_not_jumped() {
        let before = Duration::from_secs(1_764_100_000);
        assert!(has_jumped(before, before + Duration::from_secs(7 * 3_600)));
        assert!(!has_jumped(before, before + Duration::from_secs(4)));
        assert!(!has_jumped(before, before - Duration::from_secs(4)));
    }
}
