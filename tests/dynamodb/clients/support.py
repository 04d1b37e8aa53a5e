"""What the programs of clients share: arguments, contention, dead holders.

Usage of each program: PROGRAM ENDPOINT SECONDS [plain]

It contends for a lock with two processes, says `contending` when both have had it, waits for a line of input (meanwhile the caller kills a
leader), and contends for SECONDS more. Then come renewals, releases and a dead holder. `plain`: the endpoint knows no leases and tokens.
"""

import contextlib
import multiprocessing
import os
import sys
import tempfile
import time

os.environ.update(AWS_ACCESS_KEY_ID="AKIDLOCK", AWS_SECRET_ACCESS_KEY="secret", AWS_DEFAULT_REGION="us-east-1")

ENDPOINT = sys.argv[1]
SECONDS = float(sys.argv[2])
IS_PLAIN = "plain" in sys.argv[3:]
# A bound on failures, seconds.
PATIENCE = 90
PROCESSES = multiprocessing.get_context("spawn")


def eventually(what, condition):
    """Waits for the condition; its value."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)
    return value


class Place:
    """A place for one, between processes, and how often it was entered."""

    def __init__(self, path):
        self.path, self.over, self.entered, self.late = path, PROCESSES.Event(), PROCESSES.Array("i", 2), PROCESSES.Value("i", 0)

    @contextlib.contextmanager
    def enter(self, process):
        # Fails if the other one is inside.
        os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
        time.sleep(0.005)
        self.entered[process] += 1
        os.unlink(self.path)
        yield


class Sent:
    """When a client sent its last write of one kind, before the SDK sends it again: a lease counts from there."""

    def __init__(self, client, operation):
        self.at = 0.0
        client.meta.events.register(f"before-call.dynamodb.{operation}", self.note)

    def note(self, **_):
        self.at = time.monotonic()

    def is_late(self, lease):
        return time.monotonic() - self.at > lease * 0.8


def contend(work):
    """Two processes run `work(process, place)`, which acquires, enters and releases until `place.over` is set."""
    with tempfile.TemporaryDirectory() as directory:
        place = Place(os.path.join(directory, "inside"))
        processes = [PROCESSES.Process(target=work, args=(n, place)) for n in range(2)]
        for process in processes:
            process.start()

        def all_alive():
            assert all(process.is_alive() for process in processes), "a contender ended"
            return True

        eventually("both have entered", lambda: all_alive() and all(place.entered))
        print("contending", flush=True)
        sys.stdin.readline()
        before, started = sum(place.entered), time.monotonic()
        eventually("entered again", lambda: all_alive() and time.monotonic() > started + SECONDS and sum(place.entered) > before + 5)
        seconds = time.monotonic() - started
        place.over.set()
        for process in processes:
            process.join(PATIENCE)
        assert [process.exitcode for process in processes] == [0, 0], "two were inside, or a contender failed"
        entered, late = list(place.entered), place.late.value
        last = sum(entered) - before
        print(f"contended: {entered[0]} + {entered[1]} tenures, {last} of them in the last {seconds:.1f} s, {late} came too late")


def die_holding(acquire, *arguments):
    """Runs `acquire` in a process that ends without a word after it. When it had the lock."""
    acquired, receiver = PROCESSES.Pipe()[::-1]
    process = PROCESSES.Process(target=_acquire_and_die, args=(acquire, acquired, arguments))
    process.start()
    assert receiver.poll(PATIENCE), "no lock"
    receiver.recv()
    process.join(PATIENCE)
    return time.monotonic()


def _acquire_and_die(acquire, acquired, arguments):
    lock = acquire(*arguments)
    acquired.send(None)
    del lock
    os._exit(1)


def report_dead_holder(lease, waited, took):
    print(f"dead holder: lease {lease:g} s; a caller that came {waited:.1f} s after its death had the lock {took:.2f} s later")
