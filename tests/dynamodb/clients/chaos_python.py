"""Clients for `lockkeeper chaos run --program`: `python-dynamodb-lock` contends for locks, boto3 sets registers, and both are judged.

What they do goes into the history of the run. A lock was asked for when the write that took it was sent first: a repetition within the
lease keeps the token that the first one got. Its lease begins with the last sending, and lasts as long as it or its last renewal. A
register is an item that is set if it has the expected value, and read.

The SDK sends a write again if its answer was lost, also if that took longer than the lease. An acquisition that is answered with success
must hold the lock: where it does not, within the lease that begins with the last sending, this program fails.
"""

import datetime
import itertools
import os
import random
import sys
import time

os.environ.update(AWS_ACCESS_KEY_ID="AKIDCHAOS", AWS_SECRET_ACCESS_KEY="secret", AWS_DEFAULT_REGION="us-east-1")

import boto3
from chaos_history import HISTORY, OVER, finish, present, speaks, until_over
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient, DynamoDBLockError

ENDPOINTS = os.environ["LOCKKEEPER_DYNAMODB_ENDPOINTS"].split(",")
CONFIG = Config(connect_timeout=1, read_timeout=5, retries={"max_attempts": 3, "mode": "standard"})
LOCKS, REGISTERS = "chaos-locks", "chaos-registers"
ERRORS = (BotoCoreError, ClientError, DynamoDBLockError)
LEASE = 2.0
HOLDERS, SETTERS = 3, 3
# Operations of all setters after which they use the next register: a search for an order takes 200.
REGISTER_LIFE = 100
OPERATIONS = itertools.count()
# Acquisitions that were answered with success and hold nothing.
FAILURES = []


class Sent:
    """When a client sent its last write of one kind: at first, and at last, where the SDK sent it again; and how often."""

    def __init__(self, client, operation):
        self.first = self.last = self.times = 0
        client.meta.events.register(f"before-call.dynamodb.{operation}", self.note_first)
        client.meta.events.register(f"before-send.dynamodb.{operation}", self.note_last)

    def note_first(self, **_):
        self.first, self.times = HISTORY.now(), 0

    def note_last(self, **_):
        self.last = HISTORY.now()
        self.times += 1


def holder(number):
    process, tenures = f"python-lock-{number}", itertools.count()
    speaks(process, "dynamodb")

    def work(endpoint):
        resource = boto3.resource("dynamodb", endpoint_url=endpoint, config=CONFIG)
        put = Sent(resource.meta.client, "PutItem")
        renewal = Sent(resource.meta.client, "UpdateItem")
        table, owner, session = resource.Table(LOCKS), f"{process}@{endpoint}", None

        def renewed(http_response, **_):
            if session and http_response.status_code == 200:
                HISTORY.add(process, "info", "renewed", session=session, sent_ns=renewal.first)

        resource.meta.client.meta.events.register("after-call.dynamodb.UpdateItem", renewed)
        locks = DynamoDBLockClient(
            resource,
            table_name=LOCKS,
            owner_name=owner,
            heartbeat_period=datetime.timedelta(seconds=LEASE / 4),
            safe_period=datetime.timedelta(seconds=LEASE * 0.8),
            lease_duration=datetime.timedelta(seconds=LEASE),
            expiry_period=datetime.timedelta(seconds=60),
        )
        try:
            while not OVER.is_set():
                key = random.choice("ab")
                name = f"dynamodb/{LOCKS}/{key}/-"
                patience = datetime.timedelta(seconds=5)
                try:
                    lock = locks.acquire_lock(key, retry_period=datetime.timedelta(milliseconds=20), retry_timeout=patience)
                except DynamoDBLockError as error:
                    if error.code == DynamoDBLockError.ACQUIRE_TIMEOUT:
                        continue
                    raise
                item = table.get_item(Key={"lock_key": key, "sort_key": "-"}, ConsistentRead=True).get("Item", {})
                if item.get("owner_name") != owner:
                    # Its lease was over before it was told, or it never had the lock.
                    if HISTORY.now() < put.last + LEASE * 1e9:
                        FAILURES.append(f"{process} acquired {key}, and the item is {item}")
                        OVER.set()
                    continue
                session = f"{process}/{next(tenures)}"
                HISTORY.add(process, "invoke", "open", put.first, session=session, ttl_ms=int(LEASE * 1000))
                HISTORY.add(process, "ok", "open", put.first)
                HISTORY.add(process, "invoke", "acquire", put.first, lock=name, session=session)
                HISTORY.add(process, "info", "renewed", session=session, sent_ns=put.last)
                HISTORY.add(process, "ok", "acquire", lock=name, token=int(item["fencingToken"]))
                time.sleep(random.choice((0.0, 0.01, 0.05, LEASE * 0.6)))
                HISTORY.add(process, "invoke", "release", session=session, token=int(item["fencingToken"]))
                session = None
                try:
                    lock.release(best_effort=False)
                except ERRORS as error:
                    HISTORY.add(process, "info", "release", reason=str(error))
                    raise
                HISTORY.add(process, "ok", "release")
        finally:
            session = None
            locks.close()

    return until_over(ENDPOINTS, ERRORS, work)


def setter(number):
    process = f"boto3-{number}"

    def value_of(item):
        return int(item["v"]["N"]) if item and "v" in item else None

    def work(endpoint):
        client = boto3.session.Session().client("dynamodb", endpoint_url=endpoint, config=CONFIG)
        update = Sent(client, "UpdateItem")
        known = {}
        while not OVER.is_set():
            register = f"r{next(OPERATIONS) // REGISTER_LIFE}"
            name = f"dynamodb/{REGISTERS}/{register}"
            key = {"k": {"S": register}}
            if random.random() < 0.4:
                HISTORY.add(process, "invoke", "read", lock=name)
                try:
                    known[register] = value_of(client.get_item(TableName=REGISTERS, Key=key, ConsistentRead=True).get("Item"))
                except (BotoCoreError, ClientError) as error:
                    HISTORY.add(process, "fail", "read", reason=type(error).__name__)
                    raise
                HISTORY.add(process, "ok", "read", **present(value=known[register]))
            else:
                before, after = known.get(register), random.randrange(1000)
                HISTORY.add(process, "invoke", "set", lock=name, **present(**{"from": before}, to=after))
                condition = "attribute_not_exists(v)" if before is None else "v = :from"
                values = {":to": {"N": str(after)}, **({} if before is None else {":from": {"N": str(before)}})}
                request = {"TableName": REGISTERS, "Key": key, "UpdateExpression": "SET v = :to"}
                try:
                    client.update_item(**request, ConditionExpression=condition, ExpressionAttributeValues=values)
                except client.exceptions.ConditionalCheckFailedException:
                    # Of a write that the SDK sent again, the first sending may have taken effect, and another set have followed: then the
                    # repetition is a new request.
                    ending = "fail" if update.times == 1 else "info"
                    HISTORY.add(process, ending, "set", reason="not_equal")
                    known.pop(register, None)
                    continue
                except (BotoCoreError, ClientError) as error:
                    # Whether it took effect is not known, and it may still.
                    HISTORY.add(process, "info", "set", reason=type(error).__name__)
                    raise
                HISTORY.add(process, "ok", "set")
                known[register] = after
            time.sleep(random.random() * 0.05)

    return until_over(ENDPOINTS, ERRORS, work)


def create_tables():
    """The faults may have begun by now: at any node, and again where an answer was lost."""
    for endpoint in itertools.cycle(ENDPOINTS):
        client = boto3.client("dynamodb", endpoint_url=endpoint, config=CONFIG)
        registers = {
            "TableName": REGISTERS,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": "k", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "k", "KeyType": "HASH"}],
        }
        try:
            tables = client.list_tables()["TableNames"]
            if LOCKS not in tables:
                DynamoDBLockClient.create_dynamodb_table(client, table_name=LOCKS)
            if REGISTERS not in tables:
                client.create_table(**registers)
            return
        except ERRORS as error:
            print(f"the tables: {error}", file=sys.stderr)
            time.sleep(0.1)


def main():
    create_tables()
    threads = [holder(number) for number in range(HOLDERS)] + [setter(number) for number in range(SETTERS)]
    finish(threads)
    if FAILURES:
        sys.exit("\n".join(FAILURES))


if __name__ == "__main__":
    main()
