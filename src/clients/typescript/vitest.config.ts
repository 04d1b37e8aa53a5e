import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    projects: [
      { test: { name: "unit", include: ["tests/unit/**/*.test.ts"], testTimeout: 30_000 } },
      {
        test: {
          name: "cluster",
          include: ["tests/cluster/**/*.test.ts"],
          globalSetup: "tests/support/cluster.ts",
          testTimeout: 60_000,
          // They share one cluster, and some stop processes: one after the other says more when one fails.
          fileParallelism: false,
        },
      },
    ],
  },
});
