"""APScheduler, whose jobs are in etcd: a scheduler adds them, fires one and ends; the next one finds the others, and fires them when due.

    apscheduler_jobs.py HOST:PORT NAME
"""

import logging
import sys
import threading
from datetime import datetime, timedelta, timezone

from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.jobstores.base import ConflictingIdError
from apscheduler.jobstores.etcd import EtcdJobStore
from apscheduler.schedulers.background import BackgroundScheduler

endpoint, name = sys.argv[1:3]
host, port = endpoint.rsplit(":", 1)
# A bound on failures, seconds.
PATIENCE = 60


def job(what):
    return what


def fired(scheduler):
    """What was fired, and an event of each."""
    done, changed = [], threading.Condition()

    def note(event):
        with changed:
            done.append(event.retval)
            changed.notify_all()

    scheduler.add_listener(note, EVENT_JOB_EXECUTED)

    def until(*wanted):
        with changed:
            assert changed.wait_for(lambda: sorted(done) == sorted(wanted), PATIENCE), done

    return until


def scheduler():
    store = EtcdJobStore(path=f"/{name}", host=host, port=int(port), timeout=20)
    return BackgroundScheduler(jobstores={"default": store}, timezone=timezone.utc)


def after(seconds):
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


logging.basicConfig(level=logging.WARNING)
first = scheduler()
until = fired(first)
first.start()
first.add_job(job, "date", run_date=after(0), args=["at once"], id="once", misfire_grace_time=PATIENCE)
first.add_job(job, "date", run_date=after(3600), args=["moved"], id="moved", misfire_grace_time=PATIENCE)
first.add_job(job, "interval", hours=1, args=["hourly"], id="hourly")
until("at once")
try:
    first.add_job(job, "date", run_date=after(1), args=["again"], id="moved")
    raise AssertionError("two jobs of one name")
except ConflictingIdError:
    pass
first.shutdown()

second = scheduler()
until = fired(second)
second.start()
# One that is over is gone, and the others are there.
assert sorted(job.id for job in second.get_jobs()) == ["hourly", "moved"]
second.reschedule_job("moved", trigger="date", run_date=after(0))
until("moved")
second.remove_job("hourly")
assert second.get_jobs() == []
second.shutdown()
