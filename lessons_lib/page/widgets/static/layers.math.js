/** Layers of models, applied to lists of vectors: one array, vector after vector. */

/**
 * Apply a matrix, whose rows are the outputs, to each vector.
 * @param {Float64Array} x @param {Float64Array} weight @param {Float64Array | undefined} bias @param {number[]} shape outputs and inputs
 */
export function linear(x, weight, bias, [outs, ins]) {
  const y = new Float64Array((x.length / ins) * outs);
  for (let at = 0, from = 0; at < y.length; from += ins)
    for (let out = 0; out < outs; out++, at++) {
      let total = bias ? bias[out] : 0;
      for (let k = 0, w = out * ins; k < ins; k++, w++) total += weight[w] * x[from + k];
      y[at] = total;
    }
  return y;
}

/**
 * Layer norm with gain and bias.
 * @param {Float64Array} x @param {Float64Array} gain @param {Float64Array} bias @param {number} eps
 */
export function layerNorm(x, gain, bias, eps) {
  const width = gain.length;
  const y = new Float64Array(x.length);
  for (let from = 0; from < x.length; from += width) {
    const own = x.subarray(from, from + width);
    const mean = own.reduce((a, b) => a + b, 0) / width;
    const spread = Math.sqrt(own.reduce((a, b) => a + (b - mean) ** 2, 0) / width + eps);
    for (let k = 0; k < width; k++) y[from + k] = ((own[k] - mean) / spread) * gain[k] + bias[k];
  }
  return y;
}
