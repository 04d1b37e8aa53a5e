// `@deliveryhero/dynamodb-lock`, by the AWS SDK for JavaScript 3. Usage: see support.py.
"use strict";

const { DynamoDBClient, CreateTableCommand, waitUntilTableExists } = require("@aws-sdk/client-dynamodb");
const { DynamoDBDocument } = require("@aws-sdk/lib-dynamodb");
const { dynamoDBLockClientFactory } = require("@deliveryhero/dynamodb-lock");
const { ENDPOINT, IS_PLAIN, assert, contend, dieHolding, eventually, reportDeadHolder, sleep, start } = require("./support.cjs");

const TABLE = "npm-deliveryhero";
const LEASE_MS = 1000;

const service = new DynamoDBClient({ endpoint: ENDPOINT, region: "us-east-1" });
const documents = DynamoDBDocument.from(service, { marshallOptions: { removeUndefinedValues: true } });

// When the last write was sent: a lease counts from there. The client itself does not watch it.
let sent = 0;
// Writes without an answer. The client does not release a lock whose renewal is under way, and says nothing.
let pending = 0;
const write = (name) => async (request) => {
    sent = performance.now();
    pending++;
    try {
        return await documents[name](request);
    } finally {
        // After the client has its answer.
        setImmediate(() => pending--);
    }
};
const observed = {
    get: (request) => documents.get(request),
    delete: (request) => documents.delete(request),
    update: write("update"),
    put: write("put"),
};

const factory = () => dynamoDBLockClientFactory(observed, { tableName: TABLE, ttlKey: "ttl" });
const lease = { leaseDurationInMs: LEASE_MS, prolongEveryMs: LEASE_MS / 4 };
const item = async (lockId) => {
    const Key = { lockId, lockGroup: "group" };
    return (await documents.get({ TableName: TABLE, Key, ConsistentRead: true })).Item;
};

async function contender(n, tenure, isOver) {
    // A renewal that fails is an error in nobody's hands: the client runs it by a timer.
    process.on("unhandledRejection", (error) => console.error(`holder-${n}: ${error.message}`));
    const client = factory();
    while (!isOver()) {
        const lock = await client.lock("group", "contended", lease);
        await tenure(performance.now() - sent > LEASE_MS * 0.8);
        await client.releaseLock(lock);
        // A waiter looks again once in a lease: without a pause it starves.
        await sleep(100);
    }
}

async function main() {
    await service.send(
        new CreateTableCommand({
            TableName: TABLE,
            BillingMode: "PAY_PER_REQUEST",
            AttributeDefinitions: ["lockId", "lockGroup"].map((AttributeName) => ({ AttributeName, AttributeType: "S" })),
            KeySchema: [
                { AttributeName: "lockId", KeyType: "HASH" },
                { AttributeName: "lockGroup", KeyType: "RANGE" },
            ],
        }),
    );
    await waitUntilTableExists({ client: service, maxWaitTime: 30 }, { TableName: TABLE });
    await contend(__filename, ["deliveryhero"]);

    const client = factory();
    const lock = await client.lock("group", "renewed", { ...lease, additionalAttributes: { note: "data", deep: { n: 1 } } });
    const first = await item("renewed");
    await sleep(LEASE_MS * 1.5);
    const later = await item("renewed");
    assert(first.recordVersionNumber !== later.recordVersionNumber, "renewed");
    assert(later.additionalAttributes.note === "data" && later.additionalAttributes.deep.n === 1, later);
    assert(later.ttl > Date.now() / 1000 && first.fencingToken === later.fencingToken, later);
    await eventually("no renewal is under way", () => pending === 0);
    await client.releaseLock(lock);
    assert((await item("renewed")) === undefined, "a release deletes");
    const again = await client.lock("group", "renewed", lease);
    assert(IS_PLAIN || (await item("renewed")).fencingToken > later.fencingToken, "the token rises");
    await client.releaseLock(again);
    console.log("renewed for longer than its lease, with data and one token; released with deletion; acquired with a higher token");

    const died = await dieHolding(__filename, "deliveryhero");
    await sleep(LEASE_MS + 1000);
    assert(IS_PLAIN || (await item("dead")) === undefined, "a lock whose lease is over reads as no item");
    const came = performance.now();
    const taken = await client.lock("group", "dead", lease);
    reportDeadHolder("deliveryhero", LEASE_MS, came - died, performance.now() - came);
    await client.releaseLock(taken);
}

start(main, { deliveryhero: contender }, { deliveryhero: () => factory().lock("group", "dead", lease) });
