/** An attempt that failed: what it says about the request, by the details that the nodes send or by the code alone. */
import { type Metadata, status as Code } from "@grpc/grpc-js";

import { type LockkeeperError, Lost, Refused } from "./errors.js";
import { ErrorInfo, Status } from "./generated/google/rpc/status_details.js";

/** A call to one node that ended with an error. */
export class CallError extends Error {
  readonly code: number;
  /** A `google.rpc.Status`; `undefined`: from the transport, or from a proxy. */
  readonly details: Uint8Array | undefined;
  /** Where the leader is, as the node says. */
  readonly leader: string | undefined;

  constructor(code: number, message: string, details?: Uint8Array, leader?: string) {
    super(message);
    this.code = code;
    this.details = details;
    this.leader = leader;
  }
}

export const LEADER_KEY = "lockkeeper-leader";
const DETAILS_KEY = "grpc-status-details-bin";

export function leaderOf(metadata: Metadata | undefined): string | undefined {
  const leader = metadata?.get(LEADER_KEY)[0];
  return typeof leader === "string" ? leader : undefined;
}

/** From what grpc-js gives. */
export function callError(error: { code?: number; details?: string; message?: string; metadata?: Metadata }): CallError {
  const details = error.metadata?.get(DETAILS_KEY)[0];
  const message = error.details ?? error.message ?? "";
  return new CallError(error.code ?? Code.UNKNOWN, message, typeof details === "string" ? undefined : details, leaderOf(error.metadata));
}

/** What an attempt without a result says. */
export type Failure =
  /** The cluster refused the request. */
  | { readonly kind: "refused"; readonly error: LockkeeperError; readonly reason: string }
  /** Not executed, for a cause that seldom goes away before the limit of a call. */
  | { readonly kind: "not-now"; readonly error: LockkeeperError; readonly why: string }
  /** Another attempt may succeed. `isUnknown`: the request may have taken effect. `nodeAnswers`: there is no leader, or it is busy. */
  | { readonly kind: "again"; readonly isUnknown: boolean; readonly nodeAnswers: boolean; readonly why: string };

export const TIMED_OUT: Failure = { kind: "again", isUnknown: true, nodeAnswers: false, why: "it did not answer in time" };
export const LEADER_MOVED: Failure = { kind: "again", isUnknown: true, nodeAnswers: true, why: "another node leads now" };

const DOMAIN = "lockkeeper.v1";
const ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo";

export function failureFrom(error: CallError): Failure {
  const info = errorInfo(error.details);
  if (info?.domain !== DOMAIN) {
    return withoutDetails(error);
  }

  const retry = info.metadata["retry"];
  const why = error.message;
  if (retry === "safe" && info.reason !== "DISK_SPACE_LOW") {
    return { kind: "again", isUnknown: false, nodeAnswers: true, why };
  }
  if (retry === "same-id") {
    return { kind: "again", isUnknown: true, nodeAnswers: true, why };
  }

  const refused = refusal(info, why);
  return retry === "safe" ? { kind: "not-now", error: refused, why } : { kind: "refused", error: refused, reason: info.reason };
}

/**
 * The error for the requests that were under way when this one ended an open stream. A refusal, such as that of a token which was withdrawn
 * meanwhile, refuses none of them: taken for their answer, it would say that nothing happened, while an acquire may have been granted.
 */
export function interruption(why: CallError): CallError {
  const failure = failureFrom(why);
  // What is not known there is sent again as single calls, under the same ids.
  const isSo = why.code === UNIMPLEMENTED || (failure.kind === "again" && failure.isUnknown);
  return isSo ? why : new CallError(Code.UNAVAILABLE, `the stream of answers was ended: ${why.message}`, undefined, why.leader);
}

const FROM_OUTSIDE: ReadonlySet<string> = new Set([
  "UNAUTHENTICATED",
  "PERMISSION_DENIED",
  "NOT_OWNER",
  "LIMIT_REACHED",
  "CLUSTER_VERSION",
]);

/**
 * Whether a node may refuse a request so before it looks for an earlier copy of it. Such a refusal does not say that the earlier copy had no
 * effect.
 */
export function isFromOutside(error: LockkeeperError): boolean {
  // The table looks first whether it remembers the request, and then for a place for its reply.
  return error instanceof Refused && FROM_OUTSIDE.has(error.reason) && error.details["limit"] !== "replies_per_session";
}

/** `REVOKED` is a loss rather than a refusal: the grant concerned is over. */
function refusal(info: ErrorInfo, message: string): LockkeeperError {
  const details = { ...info.metadata };
  if (info.reason === "REVOKED") {
    return new Lost({ reason: "revoked", operatorReason: details["revoked_reason"] ?? "" });
  }
  delete details["retry"];
  return new Refused(info.reason, message, details);
}

function errorInfo(details: Uint8Array | undefined): ErrorInfo | undefined {
  if (details === undefined) {
    return undefined;
  }
  try {
    const any = Status.decode(details).details.find(({ typeUrl }) => typeUrl === ERROR_INFO);
    return any === undefined ? undefined : ErrorInfo.decode(any.value);
  } catch {
    // Not what it should be: as if there were none.
    return undefined;
  }
}

/** Codes of errors of the transport, or of a proxy, that say nothing about the request. */
const MAY_HAVE_HAPPENED: ReadonlySet<number> = new Set([
  Code.UNAVAILABLE,
  Code.UNKNOWN,
  Code.CANCELLED,
  Code.DEADLINE_EXCEEDED,
  Code.ABORTED,
  Code.INTERNAL,
]);

const UNAVAILABLE: number = Code.UNAVAILABLE;
const UNIMPLEMENTED: number = Code.UNIMPLEMENTED;

/** What grpc-js says when it had no connection to send the request on. If it ever says otherwise, the outcome counts as unknown. */
const NEVER_SENT = /^(No connection established|Name resolution failed)/;

function withoutDetails({ code, message }: CallError): Failure {
  if (!MAY_HAVE_HAPPENED.has(code)) {
    return { kind: "refused", error: new Refused("", message, {}), reason: "" };
  }
  const wasSent = code !== UNAVAILABLE || !NEVER_SENT.test(message);
  return { kind: "again", isUnknown: wasSent, nodeAnswers: false, why: plain(message) };
}

/** The cause rather than the words around it, and for causes that are seen often, what to do. */
function plain(message: string): string {
  const cause = /Last error: (.*?)(?:\. Resolution note: .*)?$/s.exec(message)?.[1] ?? message;
  const hint = HINTS.find(({ sign }) => sign.test(cause));
  return hint === undefined ? cause : `${cause}: ${hint.advice}`;
}

const HINTS: readonly { readonly sign: RegExp; readonly advice: string }[] = [
  {
    sign: /self[- ]signed certificate|unable to (get|verify)/i,
    advice: "the node's certificate is not by an authority of tls.ca (LOCKKEEPER_CA)",
  },
  { sign: /wrong version number|packet length too long/i, advice: "the node does not speak TLS" },
  { sign: /altnames|does not match certificate/i, advice: "the node's certificate does not name the host of the endpoint" },
  { sign: /alert.*certificate required|certificate required/i, advice: "the node asks for a certificate (tls.cert, LOCKKEEPER_CERT)" },
];
