"""Pauses between attempts: doubled with each, with jitter so that clients that failed together do not come back together."""

import random

FIRST = 0.020
LONGEST = 1.0


class Backoff:
    """20 ms, doubled with each pause, a second at most; of it a random part of the upper half."""

    def __init__(self) -> None:
        self._failures = 0

    def next(self) -> float:
        span: float = min(FIRST * 2 ** min(self._failures, 16), LONGEST)
        self._failures += 1
        return span * random.uniform(0.5, 1.0)
