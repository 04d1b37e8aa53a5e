// What a program in TypeScript does with the generated clients: the names of the calls, and the client's own methods beside them.
import { credentials, type ServiceError } from "@grpc/grpc-js";
import { SessionsClient, type CloseSessionResponse } from "./lockkeeper/v1/sessions.js";
import { LocksClient } from "./lockkeeper/v1/locks.js";

const sessions = new SessionsClient("127.0.0.1:7101", credentials.createInsecure());
sessions.open({ sessionId: "", ttlMs: 10_000, label: "typescript" }, (error: ServiceError | null, opened) => {
    if (error) throw error;
    const sessionId: string = opened.sessionId;
    sessions.closeSession({ sessionId, reason: "" }, (failed: ServiceError | null, closed: CloseSessionResponse) => {
        if (failed) throw failed;
        sessions.close();
        return closed;
    });
});
const locks: LocksClient = new LocksClient("127.0.0.1:7101", credentials.createInsecure());
locks.close();
