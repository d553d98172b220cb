"""Write still pictures for pages without scripts: SVG as text, in the colours of ``static/explorer.css``."""

from html import escape

Number = int | float


def element(tag: str, /, *children: str, **attributes: object) -> str:
    """Write one SVG element; ``class_`` stands for ``class``, ``text_anchor`` for ``text-anchor``.

    Children are markup and are not escaped; :func:`text` writes text.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_short(value))}"' for name, value in attributes.items()
    )
    return f"<{tag}{written}>{''.join(children)}</{tag}>" if children else f"<{tag}{written}/>"


def text(content: str, /, *, x: Number, y: Number, class_: str = "", anchor: str = "start") -> str:
    """Write one line of text, anchored at its ``start``, ``middle`` or ``end``."""
    return element("text", escape(content), x=x, y=y, class_=class_, text_anchor=anchor)


def picture(width: Number, height: Number, description: str, *children: str) -> str:
    """Return the children as one SVG picture with alternative text."""
    return element("svg", *children, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=description)


def weight_map(left: Number, top: Number, width: Number, rows: list[list[float]]) -> list[str]:
    """Draw causal attention weights as a square over the visible pairs, weights of about one strength in one path."""
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


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
