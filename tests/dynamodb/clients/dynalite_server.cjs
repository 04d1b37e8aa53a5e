// A dynalite server on a port of its own, until its input ends: it says where it listens.
"use strict";

const dynalite = require("dynalite");

const server = dynalite({ createTableMs: 0 }).listen(0, "127.0.0.1", () => {
    console.log(`http://127.0.0.1:${server.address().port}`);
});
// On a busy machine the walk's next request may come later than node's five seconds.
server.keepAliveTimeout = 0;
process.stdin.resume().on("end", () => process.exit(0));
