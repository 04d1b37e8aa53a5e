import { debuglog } from "node:util";

/**
 * What a client tells about its work, for people who look for a fault. Never a bearer token, and no data of a lock.
 *
 * @example
 * ```ts
 * import type { LogEvent } from "@lockkeeper/client";
 *
 * export const line = ({ level, event, message, sessionId = "-", node = "-" }: LogEvent): string =>
 *   `${level} ${event} session=${sessionId} node=${node} ${message}`;
 * ```
 */
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

/**
 * Hears what a client does: {@link ClientOptions.log}.
 *
 * @example
 * ```ts
 * import { connect, type Log } from "@lockkeeper/client";
 *
 * const log: Log = ({ level, message }) => level === "warn" && console.warn(message);
 * await using client = connect({ log });
 * ```
 */
export type Log = (event: LogEvent) => unknown;

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
