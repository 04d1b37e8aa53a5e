import { debuglog } from "node:util";

/** What a client tells about its work, for people who look for a fault. Never a token of a caller, and no data of a lock. */
export interface LogEvent {
  /** `warn`: something was lost or refused. `debug`: the course of things. */
  readonly level: "debug" | "warn";
  /** What happened, for programs: `session-opened`, `session-lost`, `stream-ended`, … New ones may come with each version. */
  readonly event: string;
  /** What happened, for people. */
  readonly message: string;
  /** The session concerned: 32 hexadecimal digits. */
  readonly sessionId?: string;
  /** The node concerned: host:port. */
  readonly node?: string;
}

export type Log = (event: LogEvent) => void;

/** Calls the program's hook, or writes to stderr where `NODE_DEBUG` names `lockkeeper`. An error of the hook harms nobody. */
export function logger(hook: Log | undefined): Log {
  if (hook === undefined) {
    const write = debuglog("lockkeeper");
    return ({ event, message, sessionId, node }) => {
      write(
        "%s: %s%s%s",
        event,
        message,
        sessionId === undefined ? "" : ` session=${sessionId}`,
        node === undefined ? "" : ` node=${node}`,
      );
    };
  }
  return (event) => {
    try {
      hook(event);
    } catch {
      // A fault of a log must not become one of a lock.
    }
  };
}
