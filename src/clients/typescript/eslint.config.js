import { defineConfig } from "eslint/config";
import { configs } from "typescript-eslint";

export default defineConfig(
  { ignores: ["dist/", "src/generated/", "**/node_modules/"] },
  configs.strictTypeChecked,
  configs.stylisticTypeChecked,
  { languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } } },
  {
    rules: {
      "no-console": "error",
      eqeqeq: "error",
      curly: "error",
      "@typescript-eslint/explicit-module-boundary-types": "error",
      "@typescript-eslint/switch-exhaustiveness-check": ["error", { considerDefaultExhaustiveForUnions: true }],
      // Numbers and bigints read well in messages.
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      // The reason of a caller's signal is thrown as it is, whatever it is.
      "@typescript-eslint/only-throw-error": "off",
      "@typescript-eslint/prefer-promise-reject-errors": "off",
    },
  },
  {
    // Programs of tests, in plain JavaScript: they tell what they saw by standard output.
    files: ["tests/**", "figures/**", "*.config.*"],
    rules: { "no-console": "off" },
  },
  { files: ["**/*.mjs", "**/*.cjs", "*.config.js"], extends: [configs.disableTypeChecked] },
  { files: ["**/*.cjs"], rules: { "@typescript-eslint/no-require-imports": "off" } },
);
