"""What the programs of Python's clients share: contention, dead holders.

Usage of each program: PROGRAM CLIENT HOST:PORT SECONDS

It contends for a lock with two processes, says `contending` when both have had it, waits for a line of input (meanwhile the caller kills a
leader), and contends for SECONDS more.
"""

import contextlib
import multiprocessing
import os
import sys
import tempfile
import time

# A bound on failures, seconds.
PATIENCE = 90
PROCESSES = multiprocessing.get_context("fork")


def eventually(what, condition):
    """Waits for the condition; its value."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)
    return value


class Place:
    """A place for one, between processes and threads: how often it was entered, came too late, and what failed meanwhile."""

    def __init__(self, path):
        self.path, self.over, self.entered = path, PROCESSES.Event(), PROCESSES.Array("i", 2)
        self.late, self.failed = PROCESSES.Value("i", 0), PROCESSES.Value("i", 0)

    @contextlib.contextmanager
    def enter(self, process):
        # Fails if another one is inside.
        os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
        time.sleep(0.005)
        with self.entered.get_lock():
            self.entered[process] += 1
        os.unlink(self.path)
        yield


def contend(work, seconds):
    """Two processes run `work(process, place)`, which acquires, enters and releases until `place.over` is set."""
    with tempfile.TemporaryDirectory() as directory:
        place = Place(os.path.join(directory, "inside"))
        processes = [PROCESSES.Process(target=work, args=(n, place)) for n in range(2)]
        for process in processes:
            process.start()

        def all_alive():
            assert all(process.is_alive() for process in processes), "two were inside, or a contender failed"
            return True

        try:
            eventually("both have entered", lambda: all_alive() and all(place.entered))
            print("contending", flush=True)
            sys.stdin.readline()
            before, started = sum(place.entered), time.monotonic()
            eventually("entered again", lambda: all_alive() and time.monotonic() > started + seconds and sum(place.entered) > before + 5)
            took = time.monotonic() - started
            place.over.set()
            for process in processes:
                process.join(PATIENCE)
            assert [process.exitcode for process in processes] == [0, 0], "two were inside, or a contender failed"
        finally:
            for process in processes:
                process.kill()
        last = sum(place.entered) - before
        counts = f"{place.late.value} came too late, {place.failed.value} errors"
        print(f"contended: {place.entered[0]} + {place.entered[1]} tenures, {last} of them in {took:.1f} s after a leader's death; {counts}")


def die_holding(acquire):
    """Runs `acquire` in a process that ends without a word after it. When it was asked for, and when the process had ended."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_acquire_and_die, args=(acquire, sender))
    process.start()
    assert receiver.poll(PATIENCE), "no lock"
    asked = receiver.recv()
    process.join(PATIENCE)
    return asked, time.monotonic()


def _acquire_and_die(acquire, sender):
    asked = time.monotonic()
    held = acquire()
    sender.send(asked)
    os._exit(0 if held else 1)
