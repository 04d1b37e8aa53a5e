"""The clock of all deadlines: it counts suspension, since the cluster's clock does.

On Linux that is `CLOCK_BOOTTIME`. On macOS `CLOCK_MONOTONIC` goes on while the machine sleeps. Elsewhere it is Python's monotonic clock,
which may stand still then: a holder that was suspended could trust a lock that it has lost, and only the token protects the resource.

Timers follow Python's monotonic clock, which stops during suspension. So no deadline is waited for by one long timer: `LOOK_AGAIN`.
"""

import time
from typing import Final

LOOK_AGAIN: Final = 0.25
"""Longest wait for a deadline before the clock is read again, seconds."""

_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def boot_now() -> float:
    """The time since the machine was booted, suspension included: seconds."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


timer_now = time.monotonic
"""The time that timers follow: seconds."""
