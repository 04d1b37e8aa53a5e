"""Contenders for a lock, and its holders, by one client of etcd as it is.

    contenders.py CLIENT HOST:PORT contend LOCK [apart]

Eight contenders in rounds. A round is over after eight tenures by half of them at least, all of them asked for since it began: then what
was seen since the start is written as a line of JSON, and a line that is read begins the next round. The end of the input ends the program.
`apart`: each contender takes a lock of its own, so that an overlap must be seen.

    contenders.py CLIENT HOST:PORT hold LOCK

Waits for the lock (`waiting`), has it (`held`) and keeps it, until it is lost (`lost`) or a line is read (`released`). A line that is read
while it waits ends that too (`cancelled`).
"""

import base64
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time

kind, endpoint, role, name = sys.argv[1:5]
CONTENDERS = 8
# Seconds. One that holds asks several times in it, and is not to lose the lock on a busy machine.
TTL = 3 if role == "contend" else 8
# The longest attempt, the pause before the next one of a client that does not wait, a tenure, and the pause after it, seconds.
ATTEMPT, RETRY, TENURE, PAUSE = 1, 0.1, 0.01, 0.3
IS_APART = "apart" in sys.argv[5:]
host, port = endpoint.rsplit(":", 1)


class Etcd3:
    def __init__(self, name):
        import etcd3

        self.client = etcd3.client(host=host, port=int(port), timeout=5)
        self.lock = self.client.lock(name, ttl=TTL)

    def acquire(self):
        return self.lock.acquire(timeout=ATTEMPT)

    def keep(self):
        self.lock.refresh()
        return self.lock.is_acquired()

    def release(self):
        return self.lock.release()


class Etcd3gw:
    def __init__(self, name):
        import etcd3gw

        self.lock = etcd3gw.client(host=host, port=int(port), timeout=5).lock(name, ttl=TTL)

    def acquire(self):
        if self.lock.acquire():
            return True
        self.lock.lease.revoke()
        time.sleep(RETRY)
        return False

    def keep(self):
        self.lock.refresh()
        return self.lock.is_acquired()

    def release(self):
        return self.lock.release()


class Tooz:
    def __init__(self, name):
        from tooz import coordination

        url = f"etcd3+http://{endpoint}?api_version=v3&lock_timeout={TTL}&timeout=5"
        self.coordinator = coordination.get_coordinator(url, f"member-{id(self)}".encode())
        self.coordinator.start(start_heart=False)
        self.lock = self.coordinator.get_lock(name.encode())

    def acquire(self):
        if self.lock.acquire(blocking=False):
            return True
        time.sleep(RETRY)
        return False

    def keep(self):
        # Its own `acquired` does not ask.
        self.lock.heartbeat()
        value = self.coordinator.client.get(self.lock._key.decode())
        return bool(value) and value[0] == base64.b64decode(self.lock._uuid)

    def release(self):
        return self.lock.release()


class Aetcd:
    """All contenders share a loop, which runs in a thread of its own."""

    loop = None
    is_first = threading.Lock()

    def __init__(self, name):
        import asyncio

        import aetcd

        with Aetcd.is_first:
            if not Aetcd.loop:
                Aetcd.loop = asyncio.new_event_loop()
                threading.Thread(target=Aetcd.loop.run_forever, daemon=True).start()

        async def lock():
            self.client = aetcd.Client(host=host, port=int(port), timeout=5)
            return self.client.lock(name.encode(), ttl=TTL)

        self.lock = self.run(lock())

    def run(self, coroutine):
        import asyncio

        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout=10)

    def acquire(self):
        return self.run(self.lock.acquire(timeout=ATTEMPT))

    def keep(self):
        self.run(self.lock.refresh())
        return self.run(self.lock.is_acquired())

    def release(self):
        return self.run(self.lock.release())


class Etcdctl:
    """A process for each tenure, which ends with its parent. It renews the lock by itself."""

    process = None

    def __init__(self, name):
        self.name = name

    def acquire(self):
        if not self.process:
            command = [os.environ["ETCDCTL"], "lock", f"--ttl={TTL}", self.name]
            environment = os.environ | {"ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": endpoint}
            # PR_SET_PDEATHSIG
            ends = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
            self.process = subprocess.Popen(command, env=environment, preexec_fn=ends, **pipes)
            self.has = threading.Event()
            threading.Thread(target=self.read, args=[self.process, self.has], daemon=True).start()
        if not self.has.wait(ATTEMPT):
            return False
        if not self.key:
            raise OSError(f"etcdctl ended: {self.process.wait()}")
        return True

    def read(self, process, has):
        self.key = process.stdout.readline()
        has.set()

    def keep(self):
        return self.process.poll() is None

    def release(self):
        process, self.process = self.process, None
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(timeout=10) == 0
        finally:
            process.kill()

    cancel = release


CLIENTS = {"etcd3": Etcd3, "etcd3gw": Etcd3gw, "tooz": Tooz, "aetcd": Aetcd, "etcdctl": Etcdctl}


class Round:
    """The present round, who had the lock in it, and what was seen since the start."""

    def __init__(self):
        self.number, self.had, self.inside = 0, [], 0
        self.is_last, self.mutex = threading.Event(), threading.Lock()
        self.seen = {"tenures": 0, "overlaps": 0, "late": 0, "errors": 0}

    def saw(self, what):
        with self.mutex:
            self.seen[what] += 1

    def enter(self, contender, number):
        with self.mutex:
            self.inside += 1
            self.seen["overlaps"] += self.inside > 1
        time.sleep(TENURE)
        with self.mutex:
            self.inside -= 1
            self.seen["tenures"] += 1
            if number == self.number:
                self.had.append(contender)

    def is_over(self):
        with self.mutex:
            return len(self.had) >= CONTENDERS and len(set(self.had)) >= CONTENDERS / 2

    def next(self):
        with self.mutex:
            self.number, self.had = self.number + 1, []


def contend_as(number, round):
    client, lock = None, f"{name}-{number}" if IS_APART else name
    while not round.is_last.is_set():
        asked, began = round.number, time.monotonic()
        try:
            client = client or CLIENTS[kind](lock)
            if not client.acquire():
                continue
            # These clients have no clock of their own: an answer may come when the lease is over.
            if time.monotonic() - began < TTL * 0.8:
                round.enter(number, asked)
            else:
                round.saw("late")
            client.release()
        except Exception as error:
            # There was no leader, or a connection broke. Its lease ends what it may have.
            round.saw("errors")
            print(f"contender {number}: {error!r}", file=sys.stderr)
            client = None
            time.sleep(0.1)
        # The others have their turn: most of these clients know no queue.
        time.sleep(PAUSE)


def contend():
    round = Round()
    threads = [threading.Thread(target=contend_as, args=[number, round], daemon=True) for number in range(CONTENDERS)]
    for thread in threads:
        thread.start()
    while True:
        while not round.is_over():
            time.sleep(0.01)
        print(json.dumps(round.seen), flush=True)
        if not sys.stdin.readline():
            break
        round.next()
    round.is_last.set()
    for thread in threads:
        thread.join(10)


def hold():
    say = lambda what: print(what, flush=True)
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    client = CLIENTS[kind](name)
    say("waiting")
    while not client.acquire():
        if told.is_set():
            getattr(client, "cancel", lambda: None)()
            return say("cancelled")
    say("held")
    while not told.wait(0.1):
        if not client.keep():
            return say("lost")
    assert client.release()
    say("released")


{"contend": contend, "hold": hold}[role]()
