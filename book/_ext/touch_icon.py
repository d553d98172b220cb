"""The icon of the site on the start screen of a phone: a PNG of 180 pixels, drawn from the site's SVG icon."""

import io
from pathlib import Path
from xml.etree import ElementTree

from PIL import Image, ImageColor, ImageDraw

SIZE = 180  # pixels, as Apple's touch icons
SVG = "{http://www.w3.org/2000/svg}"
PATH = "_static/touch-icon.png"


def draw_icon(svg: str) -> bytes:
    """Return the PNG of an SVG icon that consists of rectangles.

    The first rectangle is the ground. It fills the picture, without round corners, since phones cut the corners.

    Raises:
        ValueError: if the icon has an element other than ``svg``, ``g`` and ``rect``.
    """
    root = ElementTree.fromstring(svg)
    side = float(root.attrib["viewBox"].split()[2])
    parents = {child: parent for parent in root.iter() for child in parent}
    image = Image.new("RGB", (SIZE, SIZE))
    pen = ImageDraw.Draw(image, "RGBA")
    for element in root.iter():
        name = element.tag.removeprefix(SVG)
        if name not in ("svg", "g", "rect"):
            raise ValueError(f"the icon must consist of rectangles (svg, g, rect), got {name}")
        if name == "rect":
            x, y, width, height = (float(element.get(key, 0)) * SIZE / side for key in ("x", "y", "width", "height"))
            fill = element.get("fill") or parents[element].get("fill", "#000")
            opacity = round(255 * float(element.get("opacity", 1)))
            box = (round(x), round(y), round(x + width) - 1, round(y + height) - 1)
            pen.rectangle(box, fill=(*ImageColor.getrgb(fill), opacity))
    written = io.BytesIO()
    image.save(written, "PNG", optimize=True)
    return written.getvalue()


def link_icon(app, pagename, templatename, context, doctree) -> None:
    """Add the link to the icon to the head of each page."""
    link = f'<link rel="apple-touch-icon" href="{context["pathto"](PATH, resource=True)}">'
    context["metatags"] = f"{context.get('metatags', '')}\n{link}"


def write_icon(app, exception) -> None:
    """Write the icon into the site."""
    if exception is None and app.builder.format == "html":
        svg = Path(app.outdir, "_static", Path(app.config.html_favicon).name).read_text(encoding="utf-8")
        Path(app.outdir, PATH).write_bytes(draw_icon(svg))


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", link_icon, priority=900)  # explorer_pages.py replaces all earlier tags
    app.connect("build-finished", write_icon)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
