"""APScheduler: a job that every host schedules, and one of them runs each time.

    scheduler = BackgroundScheduler()
    scheduler.add_job(once_each(client, "reports", every=3600)(make_report), CronTrigger(minute=0))

The lock keeps two hosts from running at the same time. Its data, which stay when it is released, say which run was the last: so a host
whose clock is a little late does not run the same one again. Where the job fails, the next host that comes may try.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import lockkeeper


def once_each(
    client: lockkeeper.Client, name: str, every: float
) -> Callable[[Callable[[lockkeeper.Lock], None]], Callable[[], None]]:
    """A decorator: of all hosts one runs the job in each `every` seconds of the day. The job gets the lock, for its token and for
    `raise_if_lost`."""

    def decorate(job: Callable[[lockkeeper.Lock], None]) -> Callable[[], None]:
        @functools.wraps(job)
        def run() -> None:
            slot = int(time.time() // every)
            try:
                lock = client.lock(f"jobs/{name}", wait=0).acquire()
            except lockkeeper.NotAcquired:
                return
            with lock:
                done = client.get(f"jobs/{name}").data
                if done is not None and int(done) >= slot:
                    return
                job(lock)
                lock.update(str(slot).encode(), keep_data=True)

        return run

    return decorate
