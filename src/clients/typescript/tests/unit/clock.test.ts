import { uptime } from "node:os";
import { describe, expect, test } from "vitest";

import { SuspensionClock, systemClock } from "../../src/clock.js";

/** A machine whose two clocks are moved by hand. */
class Machine {
  monotonic = 1_000;
  boot = 5_000;

  run(ms: number): void {
    this.monotonic += ms;
    this.boot += ms;
  }

  suspend(ms: number): void {
    this.boot += ms;
  }

  /** As on Linux: CLOCK_BOOTTIME in steps of 10 ms. */
  linux(): SuspensionClock {
    const countingMs = (): number => Math.floor(this.boot / 10) * 10;
    return new SuspensionClock({ monotonicMs: () => this.monotonic, countingMs }, { stepMs: 10, isFixed: true });
  }

  wall(): SuspensionClock {
    return new SuspensionClock({ monotonicMs: () => this.monotonic, countingMs: () => this.boot }, { stepMs: 0, isFixed: false });
  }
}

describe("a clock that counts suspension", () => {
  test("goes on as the monotonic one while the machine runs, whatever the steps of the other", () => {
    const machine = new Machine();
    const clock = machine.linux();
    for (let look = 0; look < 100; look += 1) {
      clock.now();
      machine.run(3.3);
    }
    const began = clock.now();
    machine.run(777.7);
    expect(clock.now() - began).toBeCloseTo(777.7, 5);
  });

  test("counts a suspension on the first look, ten milliseconds too long at most and never too short", () => {
    for (const asleep of [11, 25, 300, 3_600_000]) {
      for (let phase = 0; phase < 10; phase += 1) {
        const machine = new Machine();
        machine.run(phase);
        const clock = machine.linux();
        machine.run(1_000);
        const began = clock.now();
        machine.suspend(asleep);
        machine.run(5);

        const passed = clock.now() - began;
        expect(passed, `${asleep} ms from phase ${phase}`).toBeLessThanOrEqual(asleep + 5 + 20);
        // A suspension of about a step can hide in it.
        expect(passed).toBeGreaterThanOrEqual(asleep > 20 ? asleep + 5 : 5);
      }
    }
  });

  test("never runs backwards", () => {
    const machine = new Machine();
    const clock = machine.linux();
    let last = clock.now();
    for (const step of [5, -3, 0, 40, -100, 7]) {
      machine.boot += step;
      machine.monotonic += Math.max(0, step);
      const now = clock.now();
      expect(now).toBeGreaterThanOrEqual(last);
      last = now;
    }
  });

  test("takes a jump of the wall clock for a suspension where there is nothing better, and a correction for none", () => {
    const machine = new Machine();
    const clock = machine.wall();
    const began = clock.now();
    machine.suspend(900);
    expect(clock.now() - began).toBe(0);
    machine.suspend(-5_000);
    expect(clock.now() - began).toBe(0);
    machine.suspend(4_000);
    expect(clock.now() - began).toBe(4_000);
  });

  test("of this machine agrees with its uptime", () => {
    const clock = systemClock();
    expect(Math.abs(clock.now() - uptime() * 1_000)).toBeLessThan(process.platform === "linux" ? 100 : Infinity);
  });
});
