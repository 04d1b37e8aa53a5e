"""The recipes with the packages that they are for."""

from __future__ import annotations

import io
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from conftest import until

import lockkeeper
import lockkeeper.testing

sys.path.insert(0, str(Path(__file__).parent.parent / "recipes"))


@pytest.fixture(autouse=True)
def environment(cluster: lockkeeper.testing.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKKEEPER_ENDPOINTS", cluster.endpoints)


@pytest.mark.filterwarnings("default")
def test_one_beat_of_two_sends_and_the_other_takes_over(tmp_path: Path, client: lockkeeper.Client) -> None:
    from celery import Celery
    from celery_beat import LOCK, ElectedScheduler

    app = Celery("shop", broker="memory://")
    app.conf.beat_schedule = {"bill": {"task": "shop.bill", "schedule": 0.01}}
    sent: list[str] = []

    class Beat(ElectedScheduler):
        def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> None:
            sent.append(self.schedule_filename)

    one, two = (Beat(app=app, schedule_filename=str(tmp_path / name)) for name in ("one", "two"))
    for beat in (one, two):
        beat.setup_schedule()

    def both() -> bool:
        two.tick() if sent else None
        one.tick()
        return len(sent) > 3

    until("it sends", both)
    assert set(sent) == {str(tmp_path / "one")}
    assert client.get(LOCK).is_held
    client.force_release(LOCK, "maintenance")
    until("the first stands by", lambda: one._lock is None or one._lock.loss is not None)
    one.close()
    sent.clear()
    until("the second one sends", lambda: two.tick() is not None and sent)
    assert set(sent) == {str(tmp_path / "two")}
    two.close()
    assert not client.get(LOCK).is_held


def test_of_two_schedulers_one_runs_each_time(cluster: lockkeeper.testing.Cluster, client: lockkeeper.Client) -> None:
    from apscheduler.schedulers.background import BackgroundScheduler
    from apscheduler_jobs import once_each

    every = 1.0
    slots: list[int] = []
    inside = threading.Lock()

    def job(lock: lockkeeper.Lock) -> None:
        import time

        assert inside.acquire(blocking=False)
        slots.append(int(time.time() // every))
        lock.raise_if_lost()
        inside.release()

    others = [cluster.connect() for _ in range(2)]
    schedulers = []
    for other in others:
        scheduler = BackgroundScheduler(timezone="UTC")
        # Often, so that both ask many times for each run.
        scheduler.add_job(once_each(other, "reports", every)(job), "interval", seconds=0.2, max_instances=1)
        scheduler.start()
        schedulers.append(scheduler)
    try:
        until("it ran", lambda: len(slots) >= 3)
    finally:
        for scheduler in schedulers:
            scheduler.shutdown()
        for other in others:
            other.close()
    assert slots == sorted(set(slots)), "no run twice"
    data = client.get("jobs/reports").data
    assert data is not None
    assert int(data) >= slots[-2]


@pytest.fixture
def bill() -> Any:
    import django
    from django.conf import settings
    from django_command import LockedCommand

    if not settings.configured:
        settings.configure(INSTALLED_APPS=[])
        django.setup()
    ran: list[int] = []

    class Command(LockedCommand):
        def handle_locked(self, lock: lockkeeper.Lock, *args: Any, **options: Any) -> None:
            ran.append(lock.token)
            if options.get("verbosity") == 3:
                with lockkeeper.connect() as operator:
                    operator.force_release(lock.names[0], "maintenance", token=lock.token)
                until("it is told", lambda: lock.loss)
                lock.raise_if_lost()

    Command.__module__ = "shop.management.commands.bill"
    return types.SimpleNamespace(command=Command, ran=ran)


def test_a_management_command_runs_where_the_lock_is(client: lockkeeper.Client, bill: Any) -> None:
    from django.core.management import CommandError, call_command

    out = io.StringIO()
    call_command(bill.command(stdout=out))
    assert len(bill.ran) == 1
    with client.lock("django/bill") as lock:
        call_command(bill.command(stdout=out))
        assert len(bill.ran) == 1
        assert f"with token {lock.token}" in out.getvalue()
    with pytest.raises(CommandError, match="lost before the end: an operator revoked the lock: maintenance"):
        call_command(bill.command(stdout=out), verbosity=3)
    call_command(bill.command(stdout=out), wait=30.0)
    assert len(bill.ran) == 3
