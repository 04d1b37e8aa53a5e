// A client that is given Sentinels counts once for each line of input, and says the count. It ends with its input.
//
// Usage: sentinels.cjs CLIENT HOST:PORT…
"use strict";

const readline = require("node:readline");

const [name, ...endpoints] = process.argv.slice(2);
const nodes = endpoints.map((endpoint) => ({ host: endpoint.split(":")[0], port: Number(endpoint.split(":")[1]) }));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function connect() {
    let client;
    if (name === "ioredis") {
        const Redis = require("ioredis");
        client = new Redis({ sentinels: nodes, name: "mymaster", sentinelRetryStrategy: () => 100, retryStrategy: () => 100 });
    } else {
        client = require("redis").createSentinel({ name: "mymaster", sentinelRootNodes: nodes, scanInterval: 500 });
    }
    client.on("error", (error) => console.error(`${name}: ${error.message}`));
    return name === "ioredis" ? client : client.connect();
}

async function main() {
    const client = await connect();
    const count = async () => {
        for (const end = Date.now() + 60_000; Date.now() < end; await sleep(100)) {
            try {
                return console.log(String(await client.incr(name)));
            } catch (error) {
                console.error(`${name}: ${error.message}`);
            }
        }
        throw new Error("it never counts again");
    };
    await count();
    for await (const _ of readline.createInterface({ input: process.stdin })) {
        await count();
    }
}

main().then(
    () => process.exit(0),
    (error) => {
        console.error(error);
        process.exit(1);
    },
);
