"""`python-dynamodb-lock`. Usage: see support.py."""

import datetime
import sys
import time

from support import ENDPOINT, IS_PLAIN, Sent, contend, die_holding, report_dead_holder

import boto3
from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient, DynamoDBLockError

TABLE = "python-dynamodb-lock"
LEASE = 2.0


def client(owner, lease=LEASE, resource=None):
    return DynamoDBLockClient(
        resource or boto3.resource("dynamodb", endpoint_url=ENDPOINT),
        table_name=TABLE,
        owner_name=owner,
        heartbeat_period=datetime.timedelta(seconds=lease / 4),
        safe_period=datetime.timedelta(seconds=lease * 0.8),
        lease_duration=datetime.timedelta(seconds=lease),
        expiry_period=datetime.timedelta(seconds=60),
    )


def acquire(locks, key, period_ms=20, **more):
    period, patience = datetime.timedelta(milliseconds=period_ms), datetime.timedelta(seconds=30)
    return locks.acquire_lock(key, retry_period=period, retry_timeout=patience, **more)


def contender(process, place):
    resource = boto3.resource("dynamodb", endpoint_url=ENDPOINT)
    sent = Sent(resource.meta.client, "PutItem")
    locks = client(f"holder-{process}", resource=resource)
    while not place.over.is_set():
        try:
            lock = acquire(locks, "contended")
            if sent.is_late(LEASE):
                place.late.value += 1
            else:
                with place.enter(process):
                    pass
            lock.release(best_effort=False)
        except DynamoDBLockError as error:
            # A leader dies meanwhile: an acquire may take too long, and a release come after the lease.
            print(f"{locks._owner_name}: {error}", file=sys.stderr)
    locks.close()


def die(key):
    return acquire(client("dead"), key)


def main():
    resource = boto3.client("dynamodb", endpoint_url=ENDPOINT)
    DynamoDBLockClient.create_dynamodb_table(resource, table_name=TABLE)
    contend(contender)

    def item(key):
        return resource.get_item(TableName=TABLE, Key={"lock_key": {"S": key}, "sort_key": {"S": "-"}}).get("Item")

    locks = client("alive")
    lock = acquire(locks, "renewed", additional_attributes={"note": "data"})
    first = item("renewed")
    time.sleep(LEASE * 1.5)
    later = item("renewed")
    assert later["note"] == {"S": "data"} and later["owner_name"] == {"S": "alive"}, later
    assert later["record_version_number"] != first["record_version_number"], "renewed"
    assert later.get("fencingToken") == first.get("fencingToken"), "a renewal is no acquisition"
    lock.release(best_effort=False)
    assert item("renewed") is None, "a release deletes"
    again = acquire(locks, "renewed")
    if not IS_PLAIN:
        assert int(item("renewed")["fencingToken"]["N"]) > int(later["fencingToken"]["N"]), "the token rises"
    again.release(best_effort=False)
    print("renewed for longer than its lease, with data and one token; released with deletion; acquired with a higher token")

    died = die_holding(die, "dead")
    time.sleep(LEASE + 1)
    assert IS_PLAIN or item("dead") is None, "a lock whose lease is over reads as no item"
    came = time.monotonic()
    taken = acquire(locks, "dead")
    report_dead_holder(LEASE, came - died, time.monotonic() - came)
    taken.release(best_effort=False)
    locks.close()


if __name__ == "__main__":
    main()
