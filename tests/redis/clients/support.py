"""What the programs of Python's clients share.

Usage of each program: PROGRAM CLIENT HOST:PORT SECONDS

It contends for a lock with two processes, says `contending` when both have had it, waits for a line of input (meanwhile the caller kills a
leader), and contends for SECONDS more.
"""

import functools
import multiprocessing
import os
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), "../../unmodified"))

import contention
from contention import eventually

__all__ = ["contend", "die_holding", "eventually"]

PROCESSES = multiprocessing.get_context("fork")

contend = functools.partial(contention.contend, PROCESSES)
die_holding = functools.partial(contention.die_holding, PROCESSES)
