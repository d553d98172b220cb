/** Parameters of a GPT by part, FLOPs for a token, and bytes of keys and values. */

/**
 * @typedef {"gpt2" | "llama" | "qwen3"} Kind
 * @typedef {{ kind: Kind, layers: number, heads: number, head_width: number, group: number, eighths: number,
 *   vocab: number, tied: boolean }} Config
 */

/** The values of the sliders for heads, head width and group size. */
export const HEADS = [1, 2, 4, 8, 12, 16, 20, 25, 32, 40, 48, 64, 96, 128];
export const HEAD_WIDTHS = [16, 32, 48, 64, 80, 96, 128, 160, 192, 256];
export const GROUPS = [1, 2, 4, 8, 16, 32, 64, 128];
export const POSITIONS = 1024; // learned positions, GPT-2 only

/** Published models; the sources are in lessons_lib/page/widgets/budget.py. @type {Record<string, Config>} */
export const PRESETS = {
  "GPT-2 small": gpt2(12, 12),
  "GPT-2 medium": gpt2(24, 16),
  "GPT-2 large": gpt2(36, 20),
  "GPT-2 XL": gpt2(48, 25),
  "Llama 3 8B": later("llama", 32, 32, 4, 28, 128256),
  "Llama 3 70B": later("llama", 80, 64, 8, 28, 128256),
  "Qwen3 8B": later("qwen3", 36, 32, 4, 24, 151936),
};

/** @param {number} layers @param {number} heads @returns {Config} */
function gpt2(layers, heads) {
  return { kind: "gpt2", layers, heads, head_width: 64, group: 1, eighths: 32, vocab: 50257, tied: true };
}

/**
 * @param {Kind} kind @param {number} layers @param {number} heads @param {number} group @param {number} eighths
 * @param {number} vocab @returns {Config}
 */
function later(kind, layers, heads, group, eighths, vocab) {
  return { kind, layers, heads, head_width: 128, group, eighths, vocab, tied: false };
}

/** The number of key/value heads: `group` query heads share one, or the next smaller group that divides the heads. */
export function keyValueHeads(/** @type {Config} */ { heads, group }) {
  return heads / Math.max(...GROUPS.filter((g) => g <= group && heads % g === 0));
}

/**
 * The number of parameters of each part.
 * @param {Config} config
 */
export function parts(config) {
  const { kind, layers, heads, head_width, eighths, vocab, tied } = config;
  const g = keyValueHeads(config);
  const d = heads * head_width;
  const ff = (eighths * d) / 8;
  const shifts = (heads + 2 * g) * head_width + d + (ff + d) + 4 * d;
  const gains = 2 * d + (kind === "qwen3" ? 2 * head_width : 0);
  return {
    embedding: vocab * d,
    head: tied ? 0 : vocab * d,
    rest: kind === "gpt2" ? POSITIONS * d + layers * shifts + 2 * d : layers * gains + d,
    queries: layers * 2 * d * d,
    keys: layers * 2 * g * head_width * d,
    feedforward: layers * (kind === "gpt2" ? 2 : 3) * d * ff,
  };
}

/** @param {Config} config */
export function weights(config) {
  return Object.values(parts(config)).reduce((a, b) => a + b);
}

/**
 * FLOPs of the matrix products for one more token that attends to n tokens, itself included: two for each weight of a
 * matrix, the output matrix included, and four for each entry of a query and each visible token.
 * @param {Config} config @param {number} n
 */
export function flops(config, n) {
  const { queries, keys, feedforward } = parts(config);
  const d = config.heads * config.head_width;
  return 2 * (queries + keys + feedforward + config.vocab * d) + 4 * n * config.layers * d;
}

/** Bytes of the keys and values of n tokens, two for each number. @param {Config} config @param {number} n */
export function cacheBytes(config, n) {
  return 2 * 2 * n * config.layers * keyValueHeads(config) * config.head_width;
}

/**
 * Boxes in the unit square whose areas are the shares of the parts: columns for embeddings, attention, feed-forward.
 * @param {Config} config
 * @returns {{ name: string, share: number, x: number, y: number, width: number, height: number }[]}
 */
export function boxes(config) {
  const of = parts(config);
  const all = weights(config);
  const columns = [[of.embedding, of.head, of.rest], [of.queries, of.keys], [of.feedforward]];
  const names = [["embedding", "head", "rest"], ["queries", "keys"], ["feedforward"]];
  let x = 0;
  return columns.flatMap((column, i) => {
    const sum = column.reduce((a, b) => a + b);
    const width = sum / all;
    const left = x;
    x += width;
    let y = 0;
    return column.map((some, j) => {
      const box = { name: names[i][j], share: some / all, x: left, y, width, height: some / sum };
      y += box.height;
      return box;
    });
  });
}
