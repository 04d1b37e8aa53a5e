// `dynamodb-lock-client`, fail-closed and fail-open, by the AWS SDK for JavaScript 2. Usage: see support.py.
"use strict";

const { promisify } = require("node:util");
const AWS = require("aws-sdk");
const { FailClosed, FailOpen } = require("dynamodb-lock-client");
const { ENDPOINT, IS_PLAIN, assert, contend, dieHolding, eventually, reportDeadHolder, sleep, start } = require("./support.cjs");

const [CLOSED, OPEN, SORTED] = ["npm-fail-closed", "npm-fail-open", "npm-fail-open-sorted"];
const LEASE_MS = 1000;

const options = { endpoint: ENDPOINT, region: "us-east-1" };
const service = new AWS.DynamoDB(options);
const documents = new AWS.DynamoDB.DocumentClient({ service });

// When the last put was sent: a lease counts from there. The client itself has no clock.
let sent = 0;
// Puts without an answer. The client does not release a lock whose renewal is under way, and says nothing.
let pending = 0;
const observed = {
    get: documents.get.bind(documents),
    delete: documents.delete.bind(documents),
    put: (params, callback) => {
        sent = performance.now();
        pending++;
        return documents.put(params, (...answer) => {
            callback(...answer);
            pending--;
        });
    },
};

const acquire = (client, id) => promisify(client.acquireLock.bind(client))(id);
const release = (lock) => promisify(lock.release.bind(lock))();
const item = async (TableName, id) => (await documents.get({ TableName, Key: { id }, ConsistentRead: true }).promise()).Item;

function failClosed(owner, retryCount = 0) {
    return new FailClosed({ owner, dynamodb: observed, lockTable: CLOSED, partitionKey: "id", acquirePeriodMs: 20, retryCount });
}

function failOpen(owner, more) {
    const lease = { heartbeatPeriodMs: LEASE_MS / 4, leaseDurationMs: LEASE_MS };
    return new FailOpen({ owner, dynamodb: observed, lockTable: OPEN, partitionKey: "id", retryCount: 1000, ...lease, ...more });
}

// A lock that is never given up: whoever dies with it, or does not hear that it has it, leaves it to a person, who is played here.
async function contendClosed(n, tenure, isOver) {
    const owner = `closed-${n}`;
    const clean = async () => {
        if ((await item(CLOSED, "contended"))?.owner === owner) {
            console.log(`${owner}: cleans up after an answer that was lost`);
            await documents.delete({ TableName: CLOSED, Key: { id: "contended" } }).promise();
        }
    };
    while (!isOver()) {
        try {
            const lock = await acquire(failClosed(owner, 50), "contended");
            await tenure(false);
            await release(lock);
        } catch (error) {
            if (!["FailedToAcquireLock", "FailedToReleaseLock"].includes(error.code) && !error.retryable) {
                throw error;
            }
            await clean();
        }
    }
}

async function contendOpen(n, tenure, isOver) {
    const client = failOpen(`open-${n}`);
    while (!isOver()) {
        try {
            const lock = await acquire(client, "contended");
            lock.on("error", (error) => console.error(`open-${n}: ${error.message}`));
            await tenure(performance.now() - sent > LEASE_MS * 0.8);
            await release(lock);
        } catch (error) {
            if (error.code !== "FailedToAcquireLock" && !error.retryable) {
                throw error;
            }
            console.error(`open-${n}: ${error.message}`);
        }
        // A waiter looks again once in a lease: without a pause it starves.
        await sleep(100);
    }
}

async function createTables() {
    for (const [TableName, keys] of [[CLOSED, ["id"]], [OPEN, ["id"]], [SORTED, ["id", "sk"]]]) {
        await service
            .createTable({
                TableName,
                BillingMode: "PAY_PER_REQUEST",
                AttributeDefinitions: keys.map((AttributeName) => ({ AttributeName, AttributeType: "S" })),
                KeySchema: keys.map((AttributeName, at) => ({ AttributeName, KeyType: ["HASH", "RANGE"][at] })),
            })
            .promise();
        await service.waitFor("tableExists", { TableName }).promise();
    }
}

async function main() {
    await createTables();
    await contend(__filename, ["fail-open", "fail-closed"]);

    // Renewals: the lease is over and over again, the token stays. A release keeps the item, and the next acquisition counts on.
    const client = failOpen("alive");
    const lock = await acquire(client, "renewed");
    const first = await item(OPEN, "renewed");
    await sleep(LEASE_MS * 1.5);
    const later = await item(OPEN, "renewed");
    assert(!first.guid.equals(later.guid) && later.leaseDurationMs === LEASE_MS, "renewed");
    assert(later.fencingToken === 1 && later.owner === "alive", later);
    await eventually("no renewal is under way", () => pending === 0);
    await release(lock);
    assert((await item(OPEN, "renewed")).leaseDurationMs === 1, "a release keeps the item");
    const again = await acquire(client, "renewed");
    assert(again.fencingToken === 2, "its own token rises");
    await release(again);
    const sorted = failOpen("alive", { lockTable: SORTED, sortKey: "sk" });
    const key = { id: "group", sk: "one" };
    const ofSorted = await acquire(sorted, key);
    await sleep(LEASE_MS / 2);
    await release(ofSorted);
    console.log("fail-open: renewed for longer than its lease; released without deletion; acquired with a higher token");

    const held = await acquire(failClosed("alive"), "kept");
    const refused = await acquire(failClosed("other"), "kept").catch((error) => error.code);
    assert(refused === "FailedToAcquireLock", refused);
    await release(held);
    assert((await item(CLOSED, "kept")) === undefined, "a release deletes");
    await dieHolding(__filename, "fail-closed");
    const dead = await acquire(failClosed("other"), "dead").catch((error) => error.code);
    assert(dead === "FailedToAcquireLock", dead);
    console.log("fail-closed: released with deletion; a dead holder's lock stays closed");

    const died = await dieHolding(__filename, "fail-open");
    await sleep(LEASE_MS + 1000);
    assert(IS_PLAIN || (await item(OPEN, "dead")).leaseDurationMs === 1, "a lock whose lease is over reads as released");
    const came = performance.now();
    const taken = await acquire(client, "dead");
    reportDeadHolder("fail-open", LEASE_MS, came - died, performance.now() - came);
    assert(taken.fencingToken === 2, taken.fencingToken);
    await release(taken);
}

start(main, { "fail-open": contendOpen, "fail-closed": contendClosed }, {
    "fail-open": () => acquire(failOpen("dead"), "dead"),
    "fail-closed": () => acquire(failClosed("dead"), "dead"),
});
