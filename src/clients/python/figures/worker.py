"""One client of one service, measured: pairs of acquire and release, or the processor time of many held locks.

    worker.py CLIENT ENDPOINT pairs SECONDS WORKERS
    worker.py CLIENT ENDPOINT held SECONDS LOCKS

Prints a JSON object. `compare.sh` runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

WARM_UP = 1.0

Locker = Callable[[str], AbstractContextManager[Any]]


@contextlib.contextmanager
def of_lockkeeper(endpoint: str) -> Iterator[Locker]:
    import lockkeeper

    with lockkeeper.connect(endpoint) as client:
        yield client.lock


@contextlib.contextmanager
def of_redis(endpoint: str) -> Iterator[Locker]:
    import redis

    host, port = endpoint.split(":")
    client = redis.Redis(host, int(port))
    # Its lock polls, each 0.1 s by default, and is not renewed.
    yield lambda name: client.lock(name, timeout=10)
    client.close()


@contextlib.contextmanager
def of_kazoo(endpoint: str) -> Iterator[Locker]:
    from kazoo.client import KazooClient

    client = KazooClient(endpoint)
    client.start()
    yield lambda name: client.Lock(f"/bench/{name}")
    client.stop()


@contextlib.contextmanager
def of_etcd3(endpoint: str) -> Iterator[Locker]:
    import etcd3

    host, port = endpoint.split(":")
    client = etcd3.client(host, int(port))
    # A lease of its own for each acquire, which is not renewed.
    yield lambda name: client.lock(name, ttl=10)
    client.close()


CLIENTS = {"lockkeeper": of_lockkeeper, "redis": of_redis, "kazoo": of_kazoo, "etcd3": of_etcd3}


def summary(times: list[float], seconds: float) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100)
    return {"pairs_per_s": len(times) / seconds, "p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3}


def pairs(client: str, endpoint: str, seconds: float, workers: int) -> dict[str, float]:
    """Each worker a thread with a lock of its own; all share one client, as a program would."""
    times: list[float] = []
    with CLIENTS[client](endpoint) as locker:
        from_, to = time.monotonic() + WARM_UP, time.monotonic() + WARM_UP + seconds

        def work(number: int) -> None:
            lock = locker(f"lock-{number}")
            while (began := time.monotonic()) < to:
                with lock:
                    pass
                if began >= from_:
                    times.append(time.monotonic() - began)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return summary(times, seconds)


async def pairs_asyncio(endpoint: str, seconds: float, workers: int) -> dict[str, float]:
    import lockkeeper.aio

    times: list[float] = []
    async with lockkeeper.aio.connect(endpoint) as client:
        from_, to = time.monotonic() + WARM_UP, time.monotonic() + WARM_UP + seconds

        async def work(number: int) -> None:
            while (began := time.monotonic()) < to:
                async with client.lock(f"lock-{number}"):
                    pass
                if began >= from_:
                    times.append(time.monotonic() - began)

        await asyncio.gather(*(work(number) for number in range(workers)))
    return summary(times, seconds)


def held(client: str, endpoint: str, seconds: float, locks: int) -> dict[str, float]:
    """The processor time of this process while it only holds."""
    with CLIENTS[client](endpoint) as locker, contextlib.ExitStack() as stack:
        for number in range(locks):
            stack.enter_context(locker(f"held-{number}"))
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(seconds)
        after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"locks": locks, "cpu_percent": 100 * used / seconds}


def main() -> None:
    client, endpoint, what, seconds, count = sys.argv[1:]
    if what == "held":
        found = held(client, endpoint, float(seconds), int(count))
    elif client == "lockkeeper.aio":
        found = asyncio.run(pairs_asyncio(endpoint, float(seconds), int(count)))
    else:
        found = pairs(client, endpoint, float(seconds), int(count))
    print(json.dumps({"client": client, "what": what, "workers": int(count), **found}))


if __name__ == "__main__":
    main()
