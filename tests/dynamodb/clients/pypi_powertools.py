"""Powertools for AWS Lambda: idempotency. Usage: see support.py.

Two processes run the same function for the same keys: each key has its effect once, and both see its result.
"""

import os
import random
import sys
import time
import warnings

from support import ENDPOINT, contend, die_holding, report_dead_holder

os.environ.update(POWERTOOLS_SERVICE_NAME="lockkeeper", POWERTOOLS_DEV="1", AWS_LAMBDA_FUNCTION_NAME="function")

import boto3
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError, IdempotencyPersistenceLayerError

ONE, TWO = "powertools", "powertools-sorted"
warnings.filterwarnings("ignore")


class Context:
    """A Lambda that has this many milliseconds left."""

    def __init__(self, ms):
        self.ms = ms

    def get_remaining_time_in_millis(self):
        return self.ms


def once(table=ONE, ms=None, **more):
    """Decorates a function of `order`."""
    store = DynamoDBPersistenceLayer(table_name=table, boto3_client=boto3.client("dynamodb", endpoint_url=ENDPOINT), **more)
    config = IdempotencyConfig(expires_after_seconds=60, lambda_context=Context(ms) if ms else None)
    # One prefix for all: the name of a function has that of its module, which differs between a program and its children.
    return idempotent_function(data_keyword_argument="order", config=config, persistence_store=store, key_prefix="order")


def contender(process, place):
    effects = place.path + "-effects"
    os.makedirs(effects, exist_ok=True)

    @once()
    def charge(order):
        with place.enter(process):
            # Fails if this order had its effect.
            os.close(os.open(f"{effects}/{order}", os.O_CREAT | os.O_EXCL))
        return f"charged {order}"

    order = 0
    while not place.over.is_set():
        # Otherwise the one that was first stays first.
        time.sleep(random.random() / 20)
        # The other one may be at the same order, or the leader may be dead.
        for _ in range(1000):
            try:
                assert charge(order=order) == f"charged {order}"
                break
            except (IdempotencyAlreadyInProgressError, IdempotencyPersistenceLayerError) as error:
                if isinstance(error, IdempotencyPersistenceLayerError):
                    print(f"holder-{process}: {error}", file=sys.stderr)
                time.sleep(0.01)
        else:
            # Its effect took place, and the record of it was lost.
            assert os.path.exists(f"{effects}/{order}"), order
            print(f"holder-{process}: order {order} stays in progress", file=sys.stderr)
        order += 1


def die_within(ms):
    @once(ms=ms)
    def leave(order):
        # No `Exception`: the library takes it for the end of the process, as it is, and keeps its record.
        raise SystemExit(order)

    try:
        leave(order="dead")
    except SystemExit:
        pass


def main():
    client = boto3.client("dynamodb", endpoint_url=ENDPOINT)
    for table, keys in [(ONE, ["id"]), (TWO, ["pk", "sk"])]:
        client.create_table(
            TableName=table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
            KeySchema=[{"AttributeName": key, "KeyType": role} for key, role in zip(keys, ["HASH", "RANGE"])],
        )
        client.update_time_to_live(TableName=table, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expiration"})
    contend(contender)

    runs = []

    @once(table=TWO, key_attr="pk", sort_key_attr="sk")
    def fails_once(order):
        runs.append(order)
        if len(runs) == 1:
            raise ValueError("no luck")
        return {"order": order, "n": 1.5}

    try:
        fails_once(order="a")
        raise AssertionError("was to fail")
    except ValueError:
        pass
    assert fails_once(order="a") == fails_once(order="a") == {"order": "a", "n": 1.5} and len(runs) == 2, runs
    print("a failure deletes the record, a success keeps the result, by a sort key")

    ms = 1500
    died = die_holding(die_within, ms)
    came = time.monotonic()

    @once(ms=ms)
    def charge(order):
        return "charged"

    refusals = 0
    while True:
        try:
            assert charge(order="dead") == "charged"
            break
        except IdempotencyAlreadyInProgressError:
            refusals += 1
            time.sleep(0.05)
    assert refusals > 0, "it was in progress"
    report_dead_holder(ms / 1000, came - died, time.monotonic() - came)


if __name__ == "__main__":
    main()
