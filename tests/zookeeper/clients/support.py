"""What the programs of Python's clients share. Each program of a client, in whatever language, is called as

    PROGRAM CLIENT MODE CONNECT PATH [FILE]

and says what happens by lines:

* `contend`: takes a lock at PATH again and again, and FILE while it holds it. `tenure` after each; `failed …` when the client gave an error.
* `hold`: takes the lock, says `held SESSION`, then `lost` if its session ends; `suspended` and `connected` on the way.
* `recipes`: each of the client's recipes below PATH, `ok NAME` after each.

`contend` and `hold` go on until their input ends.
"""

import os
import sys
import threading
import time

# A bound on failures, seconds.
PATIENCE = 60


def say(*words):
    print(*words, flush=True)


def eventually(what, condition):
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.01)
    return value


def until_input_ends():
    """An event that is set when the input ends."""
    over = threading.Event()

    def read():
        while sys.stdin.buffer.raw.read(1):
            pass
        over.set()

    threading.Thread(target=read, daemon=True).start()
    return over


def enter(path):
    """Fails if another one is inside."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    time.sleep(0.005)
    os.unlink(path)


def contend(make, file):
    """`make()` gives a lock with acquire() and release()."""
    over = until_input_ends()
    while not over.is_set():
        lock = make()
        try:
            lock.acquire()
            enter(file)
            say("tenure")
            lock.release()
        except FileExistsError:
            say("overlap")
            return 1
        except Exception as error:
            # A node dies meanwhile: the lock may be held or not, so a lock of this program is given back as often as it takes.
            say("failed", repr(error))
            release(lock, over)
        # The other one's turn: not all clients have an order.
        time.sleep(0.005)
    return 0


def release(lock, over):
    while not over.is_set():
        try:
            lock.release()
            return
        except Exception as error:
            say("failed", repr(error))
            time.sleep(0.2)
