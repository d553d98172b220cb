"""How the parts of a control lie: for the tests of explorers, on a bare page and on the site."""

# What is wrong with a visible control: its last part is not in the line of its label, or a part lies on another. On a
# phone a slider may have a line of its own, and so may a choice with long words.
MISPLACED = """(root) => [...root.querySelectorAll(".x-control")].flatMap((control) => {
  const parts = [...control.children].filter((e) => e.getClientRects().length && !e.classList.contains("x-said"));
  if (parts.length < 2) return [];
  const boxes = parts.map((e) => {
    if (e.matches("input, select")) return e.getBoundingClientRect();
    const range = document.createRange();
    range.selectNodeContents(e);  // the words, which may be wider than their place
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
    """The controls of an explorer whose parts are not beside each other, each with what is wrong."""
    return explorer.evaluate(MISPLACED)
