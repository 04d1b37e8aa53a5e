//! What a run may cost, and how it ends.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use lockkeeper_redis::ScriptLimits;
use thiserror::Error;

/// The run is over, and why. No code of a script may catch this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum RunEnded {
    #[error("it ran more than the allowed instructions")]
    Instructions,
    #[error("it ran longer than allowed")]
    Time,
    #[error("the host ended it")]
    Aborted,
}

/// The costs of one run so far.
///
/// A run that has ended stays so: each further step of it is refused. Therefore a script that catches errors in a loop ends too.
pub(crate) struct RunBudget {
    limits: ScriptLimits,
    time_max: Duration,
    deadline: Instant,
    instructions_left: Cell<u64>,
    ended: Cell<Option<RunEnded>>,
}

impl RunBudget {
    #[expect(
        clippy::disallowed_methods,
        reason = "a bound on the processor's time, which a simulation has to bound as well"
    )]
    pub(crate) fn new(limits: ScriptLimits, time_max: Duration) -> Self {
        Self {
            limits,
            time_max,
            deadline: Instant::now() + time_max,
            instructions_left: Cell::new(limits.instructions_max),
            ended: Cell::new(None),
        }
    }

    /// Charges instructions, and looks at the clock.
    #[expect(clippy::disallowed_methods, reason = "as above")]
    pub(crate) fn spend(&self, instructions: u64) -> Result<(), RunEnded> {
        if let Some(ended) = self.ended.get() {
            return Err(ended);
        }

        let left = self.instructions_left.get().checked_sub(instructions);
        self.instructions_left.set(left.unwrap_or(0));
        if left.is_none() {
            return Err(self.end(RunEnded::Instructions));
        }
        if Instant::now() >= self.deadline {
            return Err(self.end(RunEnded::Time));
        }
        Ok(())
    }

    /// Ends the run. The first reason stays.
    pub(crate) fn end(&self, reason: RunEnded) -> RunEnded {
        let reason = self.ended.get().unwrap_or(reason);
        self.ended.set(Some(reason));
        reason
    }

    pub(crate) fn ended(&self) -> Option<RunEnded> {
        self.ended.get()
    }

    pub(crate) fn limits(&self) -> &ScriptLimits {
        &self.limits
    }

    /// The text for the caller of a run that took too much.
    pub(crate) fn complaint(&self, ended: RunEnded) -> String {
        let instructions = self.limits.instructions_max;
        let time_ms = self.time_max.as_millis();
        match ended {
            RunEnded::Instructions => {
                format!("the script ran more than {instructions} instructions; make it shorter, or its loops")
            }
            RunEnded::Time => format!("the script ran longer than {time_ms} ms; make it shorter, or its loops"),
            RunEnded::Aborted => "the host ended the run".to_owned(),
        }
    }
}

/// Bytes that are copied at the cost of one instruction.
const BYTES_PER_INSTRUCTION: usize = 64;

/// Refuses bytes that could not be kept anyway, before they are copied, and charges for those that can.
pub(crate) fn charge_bytes(budget: &RunBudget, length: usize) -> mlua::Result<()> {
    refuse_bytes(budget, length)?;
    Ok(budget.spend((length / BYTES_PER_INSTRUCTION) as u64)?)
}

/// Refuses more bytes than a run may have. The interpreter's allocator does not see those that are not its own.
pub(crate) fn refuse_bytes(budget: &RunBudget, length: usize) -> mlua::Result<()> {
    if length > budget.limits().memory_bytes_max {
        return Err(mlua::Error::MemoryError("not enough memory".to_owned()));
    }
    Ok(())
}
