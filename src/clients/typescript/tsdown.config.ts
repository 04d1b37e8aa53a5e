import { defineConfig } from "tsdown";

// One file for `import`, one for `require`, each with its types. The messages of the protocol and the two small libraries that are
// needed for them and for the profile are bundled; grpc-js is not.
export default defineConfig({
  entry: ["src/index.ts"],
  format: ["esm", "cjs"],
  platform: "node",
  target: "node20",
  fixedExtension: true,
  dts: true,
  sourcemap: false,
  noExternal: ["@bufbuild/protobuf", "@bufbuild/protobuf/wire", "smol-toml"],
  clean: true,
});
