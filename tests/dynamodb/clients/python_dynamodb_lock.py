"""The unmodified client `python-dynamodb-lock` on the endpoint: exclusion, renewal, release, a dead holder.

Usage: lock_client.py ENDPOINT [SECONDS]
"""

import datetime
import multiprocessing
import os
import sys
import time

os.environ.update(AWS_ACCESS_KEY_ID="AKIDLOCK", AWS_SECRET_ACCESS_KEY="secret", AWS_DEFAULT_REGION="us-east-1")

import boto3
from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient, DynamoDBLockError

ENDPOINT = sys.argv[1]
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 10
TABLE = "python-locks"


def client(owner, lease=2.0):
    resource = boto3.resource("dynamodb", endpoint_url=ENDPOINT)
    return DynamoDBLockClient(
        resource,
        table_name=TABLE,
        owner_name=owner,
        heartbeat_period=datetime.timedelta(seconds=lease / 4),
        safe_period=datetime.timedelta(seconds=lease * 0.8),
        lease_duration=datetime.timedelta(seconds=lease),
        expiry_period=datetime.timedelta(seconds=60),
    )


def contend(owner, inside, entered, overlaps):
    """Acquires and releases; counts itself inside."""
    locks = client(owner)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            lock = locks.acquire_lock("contended", retry_period=datetime.timedelta(milliseconds=20), retry_timeout=datetime.timedelta(seconds=30))
        except DynamoDBLockError as error:
            # A node may die meanwhile; how often this may happen is bounded by the acquisitions that are wanted.
            print(f"{owner}: {error}", file=sys.stderr)
            continue
        with inside.get_lock():
            inside.value += 1
            overlaps.value += inside.value > 1
            entered.value += 1
        time.sleep(0.005)
        with inside.get_lock():
            inside.value -= 1
        try:
            lock.release(best_effort=False)
        except DynamoDBLockError as error:
            # A release that took longer than the lease comes too late.
            print(f"{owner}: {error}", file=sys.stderr)
    locks.close()


def die_holding(acquired):
    """Acquires a lock, and ends without a word."""
    client("dead").acquire_lock("dead")
    acquired.set()
    time.sleep(0.2)
    os._exit(0)


def main():
    context = multiprocessing.get_context("spawn")
    resource = boto3.client("dynamodb", endpoint_url=ENDPOINT)
    DynamoDBLockClient.create_dynamodb_table(resource, table_name=TABLE)

    inside, entered, overlaps = (context.Value("i", 0) for _ in range(3))
    holders = [context.Process(target=contend, args=(f"holder-{n}", inside, entered, overlaps)) for n in range(2)]
    for holder in holders:
        holder.start()
    for holder in holders:
        holder.join()
    assert all(holder.exitcode == 0 for holder in holders), [holder.exitcode for holder in holders]
    assert overlaps.value == 0, f"{overlaps.value} times two were inside"
    assert entered.value > 10, entered.value
    print(f"contended for {SECONDS:g} s: {entered.value} acquisitions, never two inside")

    # A lock that is renewed outlives its lease, has data and a token, and its release deletes it.
    locks = client("alive", lease=3.0)
    lock = locks.acquire_lock("renewed", additional_attributes={"note": "data"})
    key = {"lock_key": {"S": "renewed"}, "sort_key": {"S": "-"}}
    first = resource.get_item(TableName=TABLE, Key=key)["Item"]
    time.sleep(4.5)
    item = resource.get_item(TableName=TABLE, Key=key)["Item"]
    assert item["note"] == {"S": "data"} and item["owner_name"] == {"S": "alive"}, item
    assert item["record_version_number"] != first["record_version_number"], "renewed"
    assert item["fencingToken"] == first["fencingToken"], "a renewal is no acquisition"
    lock.release(best_effort=False)
    assert "Item" not in resource.get_item(TableName=TABLE, Key=key)
    again = locks.acquire_lock("renewed")
    token = resource.get_item(TableName=TABLE, Key=key)["Item"]["fencingToken"]
    assert int(token["N"]) > int(item["fencingToken"]["N"]), "the token rises"
    again.release(best_effort=False)
    print("renewed beyond its lease, released, acquired with a higher token")

    acquired = context.Event()
    dead = context.Process(target=die_holding, args=(acquired,))
    dead.start()
    acquired.wait(30)
    dead.join()
    started = time.monotonic()
    taken = locks.acquire_lock("dead", retry_period=datetime.timedelta(milliseconds=50), retry_timeout=datetime.timedelta(seconds=30))
    print(f"a dead holder's lock (lease 2 s) was acquired {time.monotonic() - started:.2f} s after its end")
    taken.release(best_effort=False)
    locks.close()


if __name__ == "__main__":
    main()
