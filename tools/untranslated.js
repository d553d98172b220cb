/**
 * Find texts in the explorers' scripts that a translation cannot reach: node tools/untranslated.js [FILE ...]
 *
 * A text that a reader sees is the argument of `say` or `sayWith` where it is shown, or of `mark` where it is defined.
 * A literal with two letters in a row is taken for a text, unless its place or its form says that it is code. The
 * fields in braces of a text are the properties of the second argument, and no others.
 */

import { readFileSync, readdirSync } from "node:fs";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const STATIC = fileURLToPath(new URL("../lessons_lib/page/widgets/static/", import.meta.url));

/** Properties and attributes whose values are code. */
const CODE_PROPERTIES = new Set(
  (
    "class d type role tabindex viewBox style transform text-anchor href id inputmode autocomplete fill scope look " +
    "aria-live aria-hidden aria-pressed aria-checked stroke-width cursor points kind key preserveAspectRatio spellcheck " +
    "aria-orientation aria-haspopup aria-expanded enterkeyhint marker-end python anchor dominant-baseline autocapitalize"
  ).split(" "),
);
/** Functions whose text arguments are code: names of events, attributes, selectors, traits, keys. */
const CODE_CALLS = new Set(
  (
    "addEventListener removeEventListener createElement createElementNS getAttribute removeAttribute toggleAttribute " +
    "hasAttribute querySelector querySelectorAll closest matches matchMedia read write when value rebuild get on off " +
    "add remove toggle contains includes indexOf startsWith endsWith split join replace replaceAll padStart match test " +
    "Event CustomEvent Error getPropertyValue setProperty has getElementsByTagName getContext say sayWith mark import " +
    "RegExp TextDecoder getElementById require toLocaleString property entries column RangeError"
  ).split(" "),
);
/** For these functions, the arguments at these places are code. @type {Record<string, number[]>} */
const CODE_PLACES = {
  html: [0],
  svg: [0],
  named: [3, 4],
  headline: [1],
  numbers: [1],
  panel: [1],
  questionCard: [0],
  querySlider: [1],
  frequencies: [1],
  stops: [0],
  steps: [0],
  word: [3, 4],
};
const COMPARISONS = new Set([
  ts.SyntaxKind.EqualsEqualsEqualsToken,
  ts.SyntaxKind.ExclamationEqualsEqualsToken,
  ts.SyntaxKind.InKeyword,
]);
/** Files of weights, records and sentences of the models' language, which no page translates. */
const DATA = /_(model|english|heads|scores|learned|record|losses)\.js$|^(stories|reader|hero|pairs)\.math\.js$/;
/** What is code in a script although it looks like a text: the reason, and the texts. @type {Record<string, string[][]>} */
const EXCEPTIONS = {
  "birth.js": [["names of measures", "accuracy", "induction"]],
  "birth.math.js": [
    ["names of parameters", "embedding", "places", "head", "norm"],
    ["an alphabet", "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"],
  ],
  "budget.js": [
    ["names of models", "GPT-2", "Llama", "Qwen3"],
    ["units", "kB", "MB", "GB", "TB"],
  ],
  "budget.math.js": [
    ["names of models", "llama", "qwen3"],
    ["names of parts", "embedding", "head", "rest", "queries", "keys", "feedforward"],
  ],
  "cost.js": [
    ["names of parts", "matrices", "pairs", "weights", "caches"],
    ["units", "ns", "ms", "1 ns", "1 ms"],
  ],
  "cost.math.js": [["names of traits", "tokens", "texts"]],
  "gpt.js": [
    ["names of traits", "words", "text"],
    ["what a model writes", "words", "characters"],
  ],
  "gpt.math.js": [["names of parameters", "norm", "embedding"]],
  "graph.js": [
    ["names of scores", "GAT", "GATv2"],
    ["letters of keys", "ABCDEFGH"],
    ["values of a trait", "query", "edge", "label"],
  ],
  "graph.math.js": [["values of a trait", "gat", "gatv2", "dot"]],
  "guess.card.js": [["names of traits", "value", "answer", "skipped"]],
  "hero.js": [
    ["names of traits", "words", "query", "off"],
    ["parts of the formula", "output", "query", "key", "value", "softmax"],
    ["names of elements", "button", "div"],
  ],
  "pairs.js": [["values of traits", "window", "performer", "both", "neither"]],
  "patches.js": [["values of traits", "few", "fewer", "alike", "in order", "shuffled"]],
  "patches.math.js": [
    ["a value of a trait", "in order"],
    ["names of parameters", "embedding", "head"],
  ],
  "reader.js": [["a value of a choice", "own"]],
  "recall.js": [["a name", "GRU"]],
  "sparse.math.js": [["values of a trait", "window", "dilated", "longformer", "bigbird"]],
  "sparse_controls.js": [["names of traits", "window", "step"]],
  "steps.js": [
    ["names of colours", "query", "quiet", "key", "value", "output"],
    ["a function", "exp"],
  ],
  "stretch.js": [["a value of a trait", "window"]],
  "tiles.js": [
    ["names of steps and values of a trait", "wait", "drawn", "rising", "falling"],
    ["units", "{} KiB", "{} MiB"],
  ],
  "tiles.math.js": [["names of steps", "load", "merge", "write"]],
};

/** A class list, a path, a colour, a size, a name of code. @param {string} text */
export const isCode = (text) =>
  !/[A-Za-z]{2}/.test(text) ||
  /^[a-z]+(_[a-z]+)+$|^[\w{}]+(\.[\w{}]+)+$/.test(text) ||
  text
    .trim()
    .split(/\s+/)
    .every((word) => /^([a-z]-[\w{}-]*|\{\}|-?\{\}[\w-]*)$/.test(word)) ||
  /^change:|^--|^\w+: var\(|^[&|] \w+( \d+)*$/.test(text) ||
  /^[\s,]*(translate|rotate|scale|var|calc|rgb|url|https?:)\b|^\{\}(px|em|%)$|^(data|aria)-|^#/.test(text);

/** @param {ts.Expression} callee */
const nameOf = (callee) =>
  callee.kind === ts.SyntaxKind.ImportKeyword
    ? "import"
    : ts.isIdentifier(callee)
      ? callee.text
      : ts.isPropertyAccessExpression(callee)
        ? callee.name.text
        : "";

/** The text of a literal, with {} for each value in a template. @param {ts.Node} node */
export function written(node) {
  if (ts.isStringLiteralLike(node)) return node.text;
  if (ts.isTemplateExpression(node))
    return [node.head.text, ...node.templateSpans.map((span) => span.literal.text)].join("{}");
  return null;
}

/** The text of literals that are joined by +, or null. @param {ts.Node | undefined} node @returns {string | null} */
function joined(node) {
  if (!node) return null;
  if (ts.isStringLiteralLike(node)) return node.text;
  if (ts.isBinaryExpression(node) && node.operatorToken.kind === ts.SyntaxKind.PlusToken) {
    const [left, right] = [joined(node.left), joined(node.right)];
    return left === null || right === null ? null : left + right;
  }
  return null;
}

/** Whether the place of a literal is one for code. @param {ts.Node} node */
export function inCode(node) {
  for (let [child, parent] = [node, node.parent]; parent; [child, parent] = [parent, parent.parent]) {
    if (ts.isArrayLiteralExpression(parent) && parent.elements[0] === child && isOption(parent)) return true;
    if (ts.isForOfStatement(parent) || ts.isParameter(parent)) return true;
    if (ts.isVariableDeclaration(parent) && ts.isArrayLiteralExpression(child))
      return /^\(keyof \w+\)\[\]$/.test(ts.getJSDocType(parent)?.getText() ?? "");
    if (ts.isImportDeclaration(parent) || ts.isExportDeclaration(parent) || ts.isTypeNode(parent)) return true;
    if (ts.isElementAccessExpression(parent) && parent.argumentExpression === child) return true;
    if (ts.isCaseClause(parent)) return parent.expression === child;
    if (ts.isPropertyAssignment(parent))
      return parent.name === child || CODE_PROPERTIES.has(/** @type {any} */ (parent.name).text);
    if (ts.isBinaryExpression(parent)) {
      const operator = parent.operatorToken.kind;
      if (COMPARISONS.has(operator)) return true;
      if (operator === ts.SyntaxKind.EqualsToken && parent.right === child) {
        const target = parent.left.getText();
        return /\.(className|style\.\w+|type|id|dataset\.\w+|cursor)$/.test(target);
      }
    } else if (ts.isCallExpression(parent) || ts.isNewExpression(parent)) {
      const name = nameOf(parent.expression);
      const place = (parent.arguments ?? []).indexOf(/** @type {any} */ (child));
      if (place < 0) continue;
      if (CODE_CALLS.has(name) || CODE_PLACES[name]?.includes(place)) return true;
      if (name === "setAttribute")
        return (
          place === 0 ||
          !["aria-label", "aria-valuetext", "title", "alt"].includes(written(parent.arguments?.[0] ?? child) ?? "")
        );
      return false;
    } else if (
      ts.isConditionalExpression(parent) ||
      ts.isParenthesizedExpression(parent) ||
      ts.isArrayLiteralExpression(parent) ||
      ts.isSpreadElement(parent) ||
      (ts.isArrowFunction(parent) && parent.body === child) ||
      ts.isTemplateSpan(parent) ||
      ts.isTemplateExpression(parent)
    )
      continue;
    else if (ts.isPropertyAccessExpression(parent)) {
      if (["includes", "indexOf", "split"].includes(parent.name.text)) return true;
    } else return false;
  }
  return false;
}

/** Whether an array pairs a value with its text, as the options of a choice do. @param {ts.ArrayLiteralExpression} pair */
function isOption(pair) {
  const list = pair.parent.parent;
  return pair.elements.length > 1 && list && ts.isPropertyAssignment(list) && list.name.getText() === "options";
}

/** Call a function for each node below another. @param {ts.Node} node @param {(node: ts.Node) => void} visit */
export function walk(node, visit) {
  visit(node);
  ts.forEachChild(node, (child) => walk(child, visit));
}

/** @param {string} file */
export const parsed = (file) =>
  ts.createSourceFile(file, readFileSync(file, "utf8"), ts.ScriptTarget.ES2022, true, ts.ScriptKind.JS);

/** What is wrong with the texts of a script, a line each. @param {string} file */
export function complaints(file) {
  const source = parsed(file);
  /** @type {string[]} */
  const found = [];
  const say = (/** @type {ts.Node} */ node, /** @type {string} */ why) => {
    const { line } = source.getLineAndCharacterOfPosition(node.getStart());
    found.push(`${basename(file)}:${line + 1}: ${why}: ${node.getText()}`);
  };
  const allowed = new Set((EXCEPTIONS[basename(file)] ?? []).flatMap(([, ...texts]) => texts));
  walk(source, (node) => {
    const text = written(node);
    if (text !== null && !isCode(text) && !allowed.has(text) && !inCode(node)) say(node, "is not given to say or mark");
    if (!ts.isCallExpression(node) || !ts.isIdentifier(node.expression)) return;
    const name = node.expression.text;
    if (!["say", "sayWith", "mark"].includes(name)) return;
    const [first, second] = node.arguments;
    const whole = joined(first);
    if (whole === null) {
      if (name !== "mark" && /** @type {any} */ (first)?.kind === ts.SyntaxKind.TemplateExpression)
        say(node, "takes a text, not a template");
      return;
    }
    const fields = [...new Set([...whole.matchAll(/\{(\w+)\}/g)].map(([, field]) => field))].sort();
    const properties = second && ts.isObjectLiteralExpression(second) ? [...second.properties] : [];
    const given = properties.flatMap((one) => (one.name ? [/** @type {any} */ (one.name).text] : [])).sort();
    const others = given.length < properties.length; // an object that is spread brings more
    const fits = others ? given.every((one) => fields.includes(one)) : fields.join() === given.join();
    if (name !== "mark" && !fits) say(node, `has the fields ${fields} and is given ${given}`);
  });
  return found;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const files = process.argv.slice(2);
  const all = readdirSync(STATIC).filter((name) => name.endsWith(".js") && !DATA.test(name));
  const found = (files.length ? files : all.map((name) => join(STATIC, name))).flatMap(complaints);
  for (const line of found) console.log(line);
  process.exitCode = found.length ? 1 : 0;
}
