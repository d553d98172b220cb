"""Find labels in drawings that overlap or are too small."""

COLLISIONS = """(root, slack) => [...root.querySelectorAll("svg")].flatMap((drawing) => {
  const texts = [...drawing.querySelectorAll("text")].filter((t) => t.textContent && t.getClientRects().length);
  const boxes = texts.map((t) => t.getBoundingClientRect());
  return texts.flatMap((t, i) => texts.slice(0, i).flatMap((u, j) => {
    const [a, b] = [boxes[i], boxes[j]];
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    return wide > 0 && high > slack ? [[t.textContent, u.textContent]] : [];
  }));
})"""

SMALLEST = """root => {
  const seen = [...root.querySelectorAll("svg text")].filter((t) => t.getClientRects().length);
  return Math.min(...seen.map((t) => t.ownerSVGElement.getScreenCTM().a * parseFloat(getComputedStyle(t).fontSize)));
}"""

TICKS = r"""root => [...root.querySelectorAll("svg text")]
  .filter((t) => !t.closest("[transform]") && /^\u2212?[\d.]+[\u207b\u00b9\u00b2\u2070-\u2079]*$/.test(t.textContent))
  .map((t) => [t.textContent, t.getAttribute("x"), t.getAttribute("y")])"""


def collisions(page, slack=4):
    """Pairs of overlapping labels; boxes are higher than letters, so a small overlap is ignored."""
    return page.locator("div.explorer").evaluate(COLLISIONS, slack)


def smallest(page):
    """The height of the smallest text in screen pixels."""
    return page.locator("div.explorer").evaluate(SMALLEST)


def ticks(page):
    """The tick labels of the axes and their positions."""
    return page.locator("div.explorer").evaluate(TICKS)


def names(page):
    return set(page.locator("div.explorer svg text").all_text_contents())
