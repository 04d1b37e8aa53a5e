"""What programs for `lockkeeper chaos run --program` share: their part of the run's history, and work until the run is over."""

import itertools
import json
import os
import random
import sys
import threading
import time

BASE_NS = int(os.environ["LOCKKEEPER_HISTORY_BASE_NS"])
OVER = threading.Event()


class History:
    """The lines of this program. Those of one process come from one thread."""

    def __init__(self):
        self.file, self.turn = open(os.environ["LOCKKEEPER_HISTORY"], "a", encoding="utf-8"), threading.Lock()

    def now(self):
        return time.monotonic_ns() - BASE_NS

    def add(self, process, kind, f, at=None, /, **value):
        lock = {"lock": value.pop("lock")} if "lock" in value else {}
        line = {"time_ns": self.now() if at is None else at, "process": process, "type": kind, "f": f, **lock}
        with self.turn:
            self.file.write(json.dumps({**line, "value": value} if value else line) + "\n")
            self.file.flush()


HISTORY = History()


def speaks(process, protocol):
    """Says whose protocol the sessions of a process are of: their holders have verdicts of their own."""
    HISTORY.add(process, "info", "speaks", process=process, protocol=protocol)


def present(**value):
    """Without what is unset."""
    return {name: of for name, of in value.items() if of is not None}


def until_over(endpoints, errors, work):
    """A thread that runs `work(endpoint)` until the run is over, on the next endpoint after each of these errors."""

    def loop():
        for endpoint in itertools.cycle(random.sample(endpoints, len(endpoints))):
            if OVER.is_set():
                return
            try:
                work(endpoint)
            except errors as error:
                print(f"{threading.current_thread().name}: {error}", file=sys.stderr)
                time.sleep(0.1)

    thread = threading.Thread(target=loop)
    thread.start()
    return thread


def finish(threads):
    """Waits for the end of the run, and for the threads."""
    sys.stdin.read()
    OVER.set()
    for thread in threads:
        thread.join()
