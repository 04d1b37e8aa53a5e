import { status as Code } from "@grpc/grpc-js";
import { describe, expect, test } from "vitest";

import { Lost, Refused } from "../../src/errors.js";
import { CallError, failureFrom, interruption } from "../../src/failure.js";
import { ErrorInfo, Status } from "../../src/generated/google/rpc/status_details.js";

function refusedBy(code: number, reason: string, metadata: Record<string, string>) {
  const value = Buffer.from(ErrorInfo.encode({ reason, domain: "lockkeeper.v1", metadata }).finish());
  const details = Status.encode({ code, message: "", details: [{ typeUrl: "type.googleapis.com/google.rpc.ErrorInfo", value }] });
  return new CallError(code, "because", details.finish());
}

function failed(code: number, reason: string, metadata: Record<string, string>) {
  return failureFrom(refusedBy(code, reason, metadata));
}

describe("an error of a node", () => {
  test("is a refusal with its reason and the things concerned, unless it may be repeated", () => {
    const refused = failed(Code.FAILED_PRECONDITION, "NOT_HELD", { retry: "no", lock: "jobs" });
    expect(refused).toMatchObject({ kind: "refused", reason: "NOT_HELD" });
    expect(refused.kind === "refused" && refused.error).toMatchObject({
      reason: "NOT_HELD",
      message: "because",
      details: { lock: "jobs" },
    });
    expect(failed(Code.UNAVAILABLE, "NO_LEADER", { retry: "safe" })).toMatchObject({ kind: "again", isUnknown: false, nodeAnswers: true });
    expect(failed(Code.DEADLINE_EXCEEDED, "OUTCOME_UNKNOWN", { retry: "same-id" })).toMatchObject({ kind: "again", isUnknown: true });
  });

  test("of a reason that this version does not know is judged by retry", () => {
    expect(failed(Code.FAILED_PRECONDITION, "MOON_PHASE", { retry: "no" })).toMatchObject({ kind: "refused", reason: "MOON_PHASE" });
    expect(failed(Code.FAILED_PRECONDITION, "MOON_PHASE", { retry: "safe" })).toMatchObject({ kind: "again" });
  });

  test("for want of disk space is not repeated until the limit", () => {
    expect(failed(Code.RESOURCE_EXHAUSTED, "DISK_SPACE_LOW", { retry: "safe" }).kind).toBe("not-now");
  });

  test("about a revoked grant is a loss", () => {
    const failure = failed(Code.FAILED_PRECONDITION, "REVOKED", { retry: "no", revoked_reason: "stuck" });
    expect(failure.kind === "refused" && failure.error).toBeInstanceOf(Lost);
    expect(failure.kind === "refused" && failure.error).toMatchObject({ reason: "revoked", operatorReason: "stuck" });
  });
});

/** Otherwise the caller of an acquire that was granted a moment before would be told that it was refused. */
test("a refusal that ends an open stream says nothing of its requests", () => {
  for (const [code, reason, retry] of [
    [Code.UNAUTHENTICATED, "UNAUTHENTICATED", "no"],
    [Code.INVALID_ARGUMENT, "INVALID_ARGUMENT", "no"],
    [Code.UNAVAILABLE, "NO_LEADER", "safe"],
    [Code.RESOURCE_EXHAUSTED, "DISK_SPACE_LOW", "safe"],
  ] as const) {
    const failure = failureFrom(interruption(refusedBy(code, reason, { retry })));
    expect(failure).toMatchObject({ kind: "again", isUnknown: true, why: "the stream of answers was ended: because" });
  }
  expect(failureFrom(interruption(new CallError(Code.UNAUTHENTICATED, "who?")))).toMatchObject({ kind: "again", isUnknown: true });
  const broke = new CallError(Code.UNAVAILABLE, "read ECONNRESET");
  expect(interruption(broke)).toBe(broke);
  expect(interruption(new CallError(Code.UNIMPLEMENTED, "no such method")).code).toBe(Code.UNIMPLEMENTED);
});

describe("an error without details", () => {
  test("says nothing about the request, unless there was no connection to send it on", () => {
    expect(failureFrom(new CallError(Code.UNAVAILABLE, "read ECONNRESET"))).toMatchObject({ kind: "again", isUnknown: true });
    expect(failureFrom(new CallError(Code.INTERNAL, "Received RST_STREAM"))).toMatchObject({ kind: "again", isUnknown: true });
    const never = failureFrom(
      new CallError(Code.UNAVAILABLE, "No connection established. Last error: connect ECONNREFUSED. Resolution note: "),
    );
    expect(never).toMatchObject({ kind: "again", isUnknown: false, why: "connect ECONNREFUSED" });
  });

  test("of a code that a proxy gives is a refusal", () => {
    const failure = failureFrom(new CallError(Code.PERMISSION_DENIED, "no"));
    expect(failure.kind === "refused" && failure.error).toBeInstanceOf(Refused);
  });

  test("with details that are none counts as without", () => {
    expect(failureFrom(new CallError(Code.UNAVAILABLE, "x", Buffer.from("nonsense")))).toMatchObject({ kind: "again", isUnknown: true });
  });
});
