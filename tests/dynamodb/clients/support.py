"""What the programs of clients share: arguments, contention, dead holders.

Usage of each program: PROGRAM ENDPOINT SECONDS [plain]

It contends for a lock with two processes, says `contending` when both have had it, waits for a line of input (meanwhile the caller kills a
leader), and contends for SECONDS more. Then come renewals, releases and a dead holder. `plain`: the endpoint knows no leases and tokens.
"""

import multiprocessing
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "../../unmodified"))

import contention
from contention import eventually

__all__ = ["ENDPOINT", "IS_PLAIN", "PROCESSES", "Sent", "contend", "die_holding", "eventually", "report_dead_holder"]

os.environ.update(AWS_ACCESS_KEY_ID="AKIDLOCK", AWS_SECRET_ACCESS_KEY="secret", AWS_DEFAULT_REGION="us-east-1")

ENDPOINT = sys.argv[1]
SECONDS = float(sys.argv[2])
IS_PLAIN = "plain" in sys.argv[3:]
PROCESSES = multiprocessing.get_context("spawn")


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
    contention.contend(PROCESSES, work, SECONDS)


def die_holding(acquire, *arguments):
    """When the process had ended that acquired a lock."""
    return contention.die_holding(PROCESSES, acquire, *arguments)[1]


def report_dead_holder(lease, waited, took):
    print(f"dead holder: lease {lease:g} s; a caller that came {waited:.1f} s after its death had the lock {took:.2f} s later")
