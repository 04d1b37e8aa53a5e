// A client without generated code: opens sessions at a node, closes them under the present name and the former one, and closes itself.
//
//     node client.js PROTO_DIRECTORY HOST:PORT
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [directory, address] = process.argv.slice(2);
const definition = loader.loadSync("lockkeeper/v1/sessions.proto", { includeDirs: [directory], longs: String, oneofs: true });
const { Sessions } = grpc.loadPackageDefinition(definition).lockkeeper.v1;
const sessions = new Sessions(address, grpc.credentials.createInsecure());

const call = (method, message) =>
    new Promise((resolve, reject) => sessions[method](message, (error, answer) => (error ? reject(error) : resolve(answer))));
const former = (message) => {
    const { requestSerialize, responseDeserialize } = Sessions.service.CloseSession;
    return new Promise((resolve, reject) =>
        sessions.makeUnaryRequest("/lockkeeper.v1.Sessions/Close", requestSerialize, responseDeserialize, message, (error, answer) =>
            error ? reject(error) : resolve(answer)));
};

async function main() {
    for (const close of [(message) => call("CloseSession", message), (message) => call("closeSession", message), former]) {
        const { sessionId } = await call("Open", { ttlMs: 10_000, label: "javascript" });
        await close({ sessionId });
        const refused = await call("Renew", { sessionId }).then(() => undefined, (error) => error);
        if (refused?.code !== grpc.status.NOT_FOUND) throw new Error(`the session is not closed: ${refused}`);
    }
    sessions.close();
    console.log("closed");
}

main().catch((error) => {
    console.error(error);
    process.exit(1);
});
