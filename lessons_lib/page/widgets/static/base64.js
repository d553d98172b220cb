/** Decode base64 data of a script to bytes. */

/** @param {string} base64 */
export function bytes(base64) {
  return Uint8Array.from(atob(base64), (byte) => byte.charCodeAt(0)).buffer;
}
