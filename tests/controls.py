"""Find misplaced parts of controls, for tests of explorers on a bare page and on the site."""

# The faults of visible controls: the last part is not in the line of the label, or two parts overlap. On a phone, a
# slider or a choice with long options may be in the next line.
MISPLACED = """(root) => [...root.querySelectorAll(".x-control")].flatMap((control) => {
  const parts = [...control.children].filter((e) => e.getClientRects().length && !e.classList.contains("x-said"));
  if (parts.length < 2) return [];
  const boxes = parts.map((e) => {
    if (e.matches("input, select")) return e.getBoundingClientRect();
    const range = document.createRange();
    range.selectNodeContents(e);  // the text, which may be wider than its element
    return range.getBoundingClientRect();
  });
  const shared = (a, b) => Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  const over = (a, b) => shared(a, b) > 1 && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1;
  const [label, last] = [boxes[0], boxes[boxes.length - 1]];
  const found = [];
  const below = innerWidth <= 576 && parts[parts.length - 1].matches("select");
  if (!below && last.height && shared(label, last) <= 0) found.push("on two lines");
  if (boxes.some((a, i) => boxes.slice(0, i).some((b) => over(a, b)))) found.push("one over another");
  return found.map((what) => `${control.textContent}: ${what}`);
})"""


def misplaced(explorer) -> list[str]:
    """Return the controls of an explorer whose parts are misplaced, each with its fault."""
    return explorer.evaluate(MISPLACED)
