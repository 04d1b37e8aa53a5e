/** Each public name has an example, and each example compiles, as do those of the README. */
import { readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";
import { describe, expect, test } from "vitest";

const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
const INDEX = join(ROOT, "src/index.ts");

const config = ts.readConfigFile(join(ROOT, "tsconfig.json"), (path) => readFileSync(path, "utf8")).config as { compilerOptions: object };
const { options } = ts.convertCompilerOptionsFromJson(config.compilerOptions, ROOT);
options.noEmit = true;

interface Documented {
  readonly name: string;
  readonly examples: readonly string[];
}

const examplesOf = (symbol: ts.Symbol): string[] =>
  symbol
    .getJsDocTags()
    .filter(({ name }) => name === "example")
    .flatMap(({ text }) => snippets(ts.displayPartsToString(text)));

function snippets(text: string): string[] {
  return [...text.matchAll(/```ts\n(.*?)```/gs)].map(([, code = ""]) => code);
}

/** What the package exports, and what of it is a member of its own with an example. */
function documented(): Documented[] {
  const program = ts.createProgram([INDEX], options);
  const checker = program.getTypeChecker();
  const index = program.getSourceFile(INDEX);
  const module = index === undefined ? undefined : checker.getSymbolAtLocation(index);
  if (module === undefined) {
    throw new Error("the index is no module");
  }

  const found: Documented[] = [];
  for (const exported of checker.getExportsOfModule(module)) {
    const symbol = exported.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(exported) : exported;
    found.push({ name: exported.name, examples: examplesOf(symbol) });
    symbol.members?.forEach((member) => {
      const examples = examplesOf(member);
      if (examples.length > 0) {
        found.push({ name: `${exported.name}.${member.name}`, examples });
      }
    });
  }
  return found;
}

/** Compiles all as modules of a program of its own, whose package is the source. */
function complaints(examples: ReadonlyMap<string, string>): string[] {
  const host = ts.createCompilerHost(options);
  const fromDisk = { ...host };
  host.fileExists = (file) => examples.has(file) || fromDisk.fileExists(file);
  host.readFile = (file) => examples.get(file) ?? fromDisk.readFile(file);
  host.getSourceFile = (file, ...rest) => {
    const text = examples.get(file);
    return text === undefined ? fromDisk.getSourceFile(file, ...rest) : ts.createSourceFile(file, text, ts.ScriptTarget.ES2022, true);
  };
  const program = ts.createProgram([...examples.keys()], options, host);
  return ts
    .getPreEmitDiagnostics(program)
    .filter(({ file }) => file !== undefined && examples.has(file.fileName))
    .map(({ file, messageText }) => `${file?.fileName}: ${ts.flattenDiagnosticMessageText(messageText, "\n")}`);
}

describe("documentation", () => {
  const found = documented();

  test("has an example for each name of the package", () => {
    expect(found.length).toBeGreaterThan(30);
    expect(found.filter(({ examples }) => examples.length === 0).map(({ name }) => name)).toEqual([]);
  });

  test("has examples that compile, as those of the README do", { timeout: 240_000 }, () => {
    const examples = new Map<string, string>();
    for (const { name, examples: own } of found) {
      own.forEach((code, place) => {
        expect(code, name).toContain("@lockkeeper/client");
        examples.set(join(ROOT, "tests", `example-${name}-${place}.ts`), `${code}\nexport {};\n`);
      });
    }
    const readme = snippets(readFileSync(join(ROOT, "README.md"), "utf8"));
    expect(readme.length).toBeGreaterThan(0);
    readme.forEach((code, place) => {
      examples.set(join(ROOT, "tests", `readme-${place}.ts`), code);
    });

    // One that does not compile shows that the others were looked at.
    const wrong = join(ROOT, "tests/wrong.ts");
    examples.set(wrong, 'import { connect } from "@lockkeeper/client";\nconst lock: string = await connect().acquire(7);\n');
    const said = complaints(examples);
    expect(said.filter((complaint) => !complaint.startsWith(wrong))).toEqual([]);
    expect(said).toHaveLength(2);
  });
});
