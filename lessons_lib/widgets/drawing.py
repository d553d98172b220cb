"""Still pictures for pages whose scripts are off: SVG as text, in the colours of ``static/explorer.css``."""

from collections.abc import Sequence
from html import escape
from itertools import pairwise

Number = int | float


def element(tag: str, /, *children: str, **attributes: object) -> str:
    """Write one SVG element; ``class_`` stands for ``class``, ``text_anchor`` for ``text-anchor``.

    Children are markup and are taken as they are; text goes through :func:`text`.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_short(value))}"' for name, value in attributes.items()
    )
    return f"<{tag}{written}>{''.join(children)}</{tag}>" if children else f"<{tag}{written}/>"


def text(content: str, /, *, x: Number, y: Number, class_: str = "", anchor: str = "start") -> str:
    """Write one line of text, anchored at its ``start``, ``middle`` or ``end``."""
    return element("text", escape(content), x=x, y=y, class_=class_, text_anchor=anchor)


def picture(width: Number, height: Number, description: str, *children: str) -> str:
    """Frame the children as one picture that says in words what it shows."""
    return element("svg", *children, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=description)


def map_of(left: Number, top: Number, width: Number, rows: list[list[float]]) -> list[str]:
    """Draw causal weights as a square on the ground of what may be seen, those of about one strength in one path."""
    side = width / len(rows)
    steps = "".join(f"V{top + side * i:.1f}h{side:.1f}" for i in range(len(rows)))
    paths = {}
    for i, row in enumerate(rows):
        for j, weight in enumerate(row[: i + 1]):
            cell = f"M{left + side * j:.1f} {top + side * i:.1f}h{side - 0.5:.1f}v{side - 0.5:.1f}h{0.5 - side:.1f}z"
            paths[round(weight, 1)] = paths.get(round(weight, 1), "") + cell
    return [
        element("path", class_="x-ground", d=f"M{left} {top}{steps}V{top + width:.1f}H{left}Z"),
        *(element("path", class_="x-solid", d=paths[s], fill_opacity=s) for s in sorted(paths) if s > 0),
    ]


def runs(row: Sequence[bool]) -> list[tuple[int, int]]:
    """Where a row allows one cell after another: first cell, and the one behind the last."""
    edges = [i for i, (before, after) in enumerate(pairwise([False, *row, False])) if before != after]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
