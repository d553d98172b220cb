"""Draw a plot that Matplotlib wrote as SVG again, as a part of another Matplotlib figure.

The plots of the chapters are stored as SVG alone. Only what Matplotlib writes is read: paths, copies of paths, groups,
rectangles to clip by, and images. Text consists of paths.
"""

import base64
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from xml.etree import ElementTree

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import BboxImage
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.transforms import Affine2D, Bbox, TransformedBbox
from PIL import Image

SVG, LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
CODES = {"M": (Path.MOVETO, 2), "L": (Path.LINETO, 2), "Q": (Path.CURVE3, 4), "C": (Path.CURVE4, 6)}
IGNORED = {"metadata", "defs", "style", "title"}
STYLES = {
    "fill",
    "stroke",
    "stroke-width",
    "stroke-dasharray",
    "stroke-dashoffset",
    "stroke-linecap",
    "stroke-linejoin",
}
STYLES |= {"opacity", "fill-opacity", "stroke-opacity", "stroke-miterlimit", "image-rendering"}


@dataclass(frozen=True)
class Context:
    """What an element inherits from those around it."""

    transform: Affine2D = field(default_factory=Affine2D)
    style: Mapping[str, str] = field(default_factory=dict)
    clip: tuple[Path, Affine2D] | None = None


@dataclass(frozen=True)
class Shape:
    """A path or an image, with all that it inherits."""

    content: Path | np.ndarray
    context: Context


def size(svg: str) -> tuple[float, float]:
    """Return the width and the height of a plot, in its own units.

    Raises:
        ValueError: if the SVG has no such size.
    """
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if not found:
        raise ValueError(f"svg must have a viewBox that begins at 0 0, got {svg[:80]!r}")
    return float(found[1]), float(found[2])


def draw_plot(axes: Axes, svg: str, left: float, top: float, width: float) -> None:
    """Draw the plot with its upper left corner at ``left, top``; ``axes`` measure pixels, from the top.

    Raises:
        ValueError: if the SVG has elements or styles that Matplotlib did not write when this was made.
    """
    scale = width / size(svg)[0]
    place = Affine2D().scale(scale).translate(left, top)
    points = scale * 72 / axes.figure.dpi  # of a line that is one unit wide
    for shape in shapes(svg):
        transform = shape.context.transform + place + axes.transData
        style = shape.context.style
        opacity = float(style.get("opacity", 1))
        if isinstance(shape.content, Path):
            is_drawn = style.get("stroke", "none") != "none"
            drawn = PathPatch(
                shape.content,
                transform=transform,
                facecolor=_colour(style.get("fill", "#000000"), opacity * float(style.get("fill-opacity", 1))),
                edgecolor=_colour(style.get("stroke", "none"), opacity * float(style.get("stroke-opacity", 1))),
                linewidth=points * float(style.get("stroke-width", 1)) if is_drawn else 0,
                linestyle=_dashes(style),
                snap=False,  # else thin letters disappear
                capstyle={"square": "projecting"}.get(
                    style.get("stroke-linecap", ""), style.get("stroke-linecap", "butt")
                ),
                joinstyle=style.get("stroke-linejoin", "round"),
            )
        else:
            drawn = _picture(axes, shape.content, shape.context.transform + place)
        axes.add_artist(drawn)
        if shape.context.clip:
            path, own = shape.context.clip
            drawn.set_clip_path(path, own + place + axes.transData)
        else:
            drawn.set_clip_on(False)


def shapes(svg: str) -> Iterator[Shape]:
    """Yield the paths and the images of a plot, those at the back first."""
    root = ElementTree.fromstring(svg)
    named = {element.attrib["id"]: element for element in root.iter() if "id" in element.attrib}
    for child in root:
        yield from _shapes(child, Context(), named)


def _shapes(element: ElementTree.Element, around: Context, named: Mapping[str, ElementTree.Element]) -> Iterator[Shape]:
    kind = element.tag.removeprefix(SVG)
    if kind in IGNORED:
        return
    context = _inside(element, around, named)
    if kind == "g":
        for child in element:
            yield from _shapes(child, context, named)
    elif kind == "path":
        yield Shape(_path(element.get("d", "")), context)
    elif kind == "use":
        x, y = (float(element.get(name, 0)) for name in "xy")
        moved = replace(context, transform=Affine2D().translate(x, y) + context.transform)
        yield from _shapes(named[element.attrib[LINK].removeprefix("#")], moved, named)
    elif kind == "image":
        x, y, width, height = (float(element.get(name, 0)) for name in ("x", "y", "width", "height"))
        data = base64.b64decode(element.attrib[LINK].split(",", 1)[1])
        pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))
        place = Affine2D().scale(width, height).translate(x, y)
        yield Shape(pixels, replace(context, transform=place + context.transform))
    else:
        raise ValueError(f"svg must consist of paths, copies, groups and images, got {kind}")


def _inside(element: ElementTree.Element, around: Context, named: Mapping[str, ElementTree.Element]) -> Context:
    style = dict(part.strip().split(": ", 1) for part in element.get("style", "").split(";") if part.strip())
    if unknown := set(style) - STYLES:
        raise ValueError(f"svg must have the styles of Matplotlib, got {', '.join(sorted(unknown))}")
    transform = _transform(element.get("transform", "")) + around.transform
    clip = around.clip
    if "clip-path" in element.attrib:
        outline = named[element.attrib["clip-path"][5:-1]][0]
        clip = _outline(outline), transform
    return Context(transform, {**around.style, **style}, clip)


def _outline(element: ElementTree.Element) -> Path:
    if element.tag == f"{SVG}path":
        return _path(element.get("d", ""))
    x, y, width, height = (float(element.attrib[name]) for name in ("x", "y", "width", "height"))
    return Path.unit_rectangle().transformed(Affine2D().scale(width, height).translate(x, y))


def _path(text: str) -> Path:
    points: list[tuple[float, float]] = []
    codes: list[int] = []
    for letter, numbers in re.findall(r"([A-Za-z])([^A-Za-z]*)", text):
        values = [float(number) for number in numbers.split()]
        if letter == "z":
            points.append(points[-1])
            codes.append(Path.CLOSEPOLY)
            continue
        if letter not in CODES or len(values) != CODES[letter][1]:
            raise ValueError(f"d must have the commands M, L, Q, C and z, got {letter}{numbers}")
        points += zip(values[::2], values[1::2], strict=True)
        codes += [CODES[letter][0]] * (len(values) // 2)
    return Path(points or [(0, 0)], codes or None)


def _transform(text: str) -> Affine2D:
    """Return a transform; of several in a row the last is applied first."""
    whole = Affine2D()
    for kind, inside in reversed(re.findall(r"(\w+)\(([^)]*)\)", text)):
        values = [float(number) for number in re.split(r"[ ,]+", inside.strip())]
        if kind == "translate":
            whole.translate(values[0], values[1] if len(values) > 1 else 0)
        elif kind == "scale":
            whole.scale(values[0], values[-1])
        elif kind == "rotate":
            whole.rotate_deg(values[0])
        elif kind == "matrix":
            whole = whole + Affine2D.from_values(*values)
        else:
            raise ValueError(f"transform must be of translate, scale, rotate and matrix, got {kind}")
    return whole


def _picture(axes: Axes, pixels: np.ndarray, transform: Affine2D) -> BboxImage:
    """Return an image that fills the unit square before the transform, which only scales, moves and mirrors it."""
    (left, top), (right, bottom) = transform.transform([(0, 0), (1, 1)])
    upright = pixels[:: 1 if top < bottom else -1, :: 1 if left < right else -1]
    box = Bbox([(min(left, right), max(top, bottom)), (max(left, right), min(top, bottom))])
    image = BboxImage(TransformedBbox(box, axes.transData), origin="lower", interpolation="nearest", zorder=1)
    image.set_data(upright)
    return image


def _colour(name: str, opacity: float) -> tuple[str, float] | str:
    if name.startswith("url"):
        raise ValueError(f"fill must be a colour, got {name}")
    return "none" if name == "none" else (name, opacity)


def _dashes(style: Mapping[str, str]) -> str | tuple[float, list[float]]:
    """Return the dashes as multiples of the width of the line, as Matplotlib takes them."""
    given = style.get("stroke-dasharray", "none")
    if given == "none":
        return "-"
    wide = float(style.get("stroke-width", 1))
    return float(style.get("stroke-dashoffset", 0)) / wide, [float(one) / wide for one in re.split(r"[ ,]+", given)]
