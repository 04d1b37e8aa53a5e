"""What the programs of Python's clients share, whatever the protocol: a place for one, two processes that contend for it, a holder that dies.

`processes` is a context of `multiprocessing`, which decides how a process begins.
"""

import contextlib
import os
import sys
import tempfile
import time

# A bound on failures, seconds.
PATIENCE = 90


def eventually(what, condition):
    """Waits for the condition; its value."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)
    return value


class Place:
    """A place for one, between processes and threads: how often it was entered, came too late, and what failed meanwhile."""

    def __init__(self, processes, path):
        self.path, self.over, self.entered = path, processes.Event(), processes.Array("i", 2)
        self.late, self.failed = processes.Value("i", 0), processes.Value("i", 0)

    @contextlib.contextmanager
    def enter(self, process):
        # Fails if another one is inside.
        os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
        time.sleep(0.005)
        with self.entered.get_lock():
            self.entered[process] += 1
        os.unlink(self.path)
        yield


def contend(processes, work, seconds):
    """Two processes run `work(process, place)`, which acquires, enters and releases until `place.over` is set.

    Says `contending` when both have entered, waits for a line of input (meanwhile the caller kills a leader), and goes on for `seconds`.
    """
    with tempfile.TemporaryDirectory() as directory:
        place = Place(processes, os.path.join(directory, "inside"))
        contenders = [processes.Process(target=work, args=(n, place)) for n in range(2)]
        for contender in contenders:
            contender.start()

        def all_alive():
            assert all(contender.is_alive() for contender in contenders), "two were inside, or a contender failed"
            return True

        try:
            eventually("both have entered", lambda: all_alive() and all(place.entered))
            print("contending", flush=True)
            sys.stdin.readline()
            before, started = sum(place.entered), time.monotonic()
            eventually("entered again", lambda: all_alive() and time.monotonic() > started + seconds and sum(place.entered) > before + 5)
            took = time.monotonic() - started
            place.over.set()
            for contender in contenders:
                contender.join(PATIENCE)
            assert [contender.exitcode for contender in contenders] == [0, 0], "two were inside, or a contender failed"
        finally:
            for contender in contenders:
                contender.kill()
        last = sum(place.entered) - before
        counts = f"{place.late.value} came too late, {place.failed.value} errors"
        print(f"contended: {place.entered[0]} + {place.entered[1]} tenures, {last} of them in {took:.1f} s after a leader's death; {counts}")


def die_holding(processes, acquire, *arguments):
    """Runs `acquire` in a process that ends without a word after it. When it was asked for, and when the process had ended."""
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=_acquire_and_die, args=(acquire, arguments, sender))
    process.start()
    assert receiver.poll(PATIENCE), "no lock"
    asked = receiver.recv()
    process.join(PATIENCE)
    return asked, time.monotonic()


def _acquire_and_die(acquire, arguments, sender):
    asked = time.monotonic()
    held = acquire(*arguments)
    sender.send(asked)
    os._exit(0 if held else 1)
