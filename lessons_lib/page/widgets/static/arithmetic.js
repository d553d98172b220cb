/** Arithmetic that several explorers share. The tests compare each function with the library's. */

/**
 * log sum exp(scores), shifted by the maximum so that nothing overflows.
 * @param {number[]} scores
 */
export function logSumExp(scores) {
  const peak = Math.max(...scores);
  return peak + Math.log(sum(scores.map((s) => Math.exp(s - peak))));
}

/**
 * softmax(scores / temperature).
 * @param {number[]} scores
 * @param {number} [temperature]
 */
export function softmax(scores, temperature = 1) {
  const peak = Math.max(...scores);
  const unnormalised = scores.map((s) => Math.exp((s - peak) / temperature));
  const total = sum(unnormalised);
  return unnormalised.map((u) => u / total);
}

/**
 * Entropy -sum p log p in nats, with 0 log 0 = 0.
 * @param {number[]} p
 */
export function entropy(p) {
  return 0 - sum(p.map((w) => (w > 0 ? w * Math.log(w) : 0)));
}

/**
 * The effective number of weights: exp of the entropy.
 * @param {number[]} p
 */
export function effectiveCount(p) {
  return Math.exp(entropy(p));
}

/** @param {number[]} numbers */
export function sum(numbers) {
  return numbers.reduce((a, b) => a + b, 0);
}

/** @param {number[]} numbers */
export function median(numbers) {
  const sorted = Float64Array.from(numbers).sort();
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/**
 * A stream of numbers in (0, 1), the same on every machine for the same seed (the generator mulberry32).
 * @param {number} seed
 */
export function uniform(seed) {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let z = Math.imul(state ^ (state >>> 15), state | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return (((z ^ (z >>> 14)) >>> 0) + 0.5) / 2 ** 32;
  };
}

/**
 * One standard normal number from two uniform ones (Box and Muller).
 * @param {() => number} random
 */
export function normal(random) {
  return Math.sqrt(-2 * Math.log(random())) * Math.cos(2 * Math.PI * random());
}
