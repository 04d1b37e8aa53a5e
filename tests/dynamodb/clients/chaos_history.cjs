// What programs for `lockkeeper chaos run --program` share: their part of the run's history, and work until the run is over. As
// chaos_history.py, for npm's clients.
"use strict";

const fs = require("node:fs");

const BASE_NS = BigInt(process.env.LOCKKEEPER_HISTORY_BASE_NS);
const history = fs.openSync(process.env.LOCKKEEPER_HISTORY, "a");
const run = { isOver: false };

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const now = () => Number(process.hrtime.bigint() - BASE_NS);

function add(name, type, f, { at = now(), lock, ...value } = {}) {
    const line = { time_ns: at, process: name, type, f, ...(lock && { lock }), ...(Object.keys(value).length && { value }) };
    fs.writeSync(history, `${JSON.stringify(line)}\n`);
}

// Runs `work(name, endpoint, tenures)` until the run is over, at the next endpoint after each error. `tenures.count` makes names of sessions.
async function hold(name, protocol, endpoints, first, work) {
    const tenures = { count: 0 };
    // Whose protocol the sessions of a process are of: their holders have verdicts of their own.
    add(name, "info", "speaks", { process: name, protocol });
    for (let turn = first; !run.isOver; turn++) {
        try {
            await work(name, endpoints[turn % endpoints.length], tenures);
        } catch (error) {
            console.error(`${name}: ${error.message}`);
            await sleep(100);
        }
    }
}

// Runs `main` to its end, and the process with it. The run is over when the input ends.
function start(main) {
    process.stdin.on("end", () => (run.isOver = true)).resume();
    main().then(() => process.exit(0), (error) => {
        console.error(error);
        process.exit(1);
    });
}

module.exports = { add, hold, now, run, sleep, start };
