"""Django: a management command that runs on one host at a time.

    class Command(LockedCommand):
        def handle_locked(self, lock, *args, **options):
            for order in Order.objects.filter(state="new"):
                lock.raise_if_lost()
                bill(order, fence=lock.token)

Started by cron on every host, it runs on one; on the others it says who has the lock, and ends well. `--wait 60` waits for the lock
instead.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

import lockkeeper


class LockedCommand(BaseCommand):  # type: ignore[misc]
    """Runs `handle_locked` while it holds the lock `django/MODULE` of its own module."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--wait", type=float, default=0.0, help="how long to wait for the lock, seconds")

    def handle(self, *args: Any, **options: Any) -> None:
        name = f"django/{type(self).__module__.rpartition('.')[2]}"
        with lockkeeper.connect() as client:
            try:
                with client.lock(name, wait=options.pop("wait")) as lock:
                    self.handle_locked(lock, *args, **options)
            except lockkeeper.NotAcquired as busy:
                self.stdout.write(str(busy))
            except lockkeeper.Lost as lost:
                raise CommandError(f"{name} was lost before the end: {lost}") from lost

    def handle_locked(self, lock: lockkeeper.Lock, *args: Any, **options: Any) -> None:
        """The work."""
        raise NotImplementedError
