"""Give the site its own fonts, reduced to the characters that its pages contain.

The fonts come from pinned packages. ``book/_static/typeface.css`` declares them, each as two files: the characters of
``COMMON``, and the others, which a browser requests only for a page that contains one. A reduced font has a name of its
own, since the SIL Open Font License reserves that of the original. The licences lie beside the fonts.

In the built site the common characters are part of the style sheet, as ``data:`` addresses, and a script in the head of
each page decodes them. Text is therefore drawn with its font from the beginning, and no line breaks anew when a font
arrives. The script also requests the icons of the theme, and on the pages of notebooks the other characters that
figures contain, before the text is parsed: whenever a font arrives, a browser lays out all text that it has. The first
page and the explorers' pages have no bold text (the fonts of the first page may weigh 45 kB), so the bold font is in a
style sheet of its own, ``typeface-bold.css``, which all other pages have.
"""

import base64
import hashlib
import html
import io
import json
import re
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from fontTools import subset
from fontTools.varLib import instancer

COMMON = {
    *range(0x20, 0x7F),
    *map(ord, "\u00a0\u00a9\u00b7\u00d7\u2013\u2014\u2018\u2019\u201c\u201d\u2022\u2026\u2212\u221a\u22a4"),
}
FEATURES = ("kern", "liga", "ccmp", "locl", "mark", "tnum", "lnum")
BOLD = "serif-bold"  # the font that some pages do without
DECODE = "for (const font of %s) document.fonts.load(...font);"
ICONS = '900 1em "Font Awesome 6 Free"'
OF_FIGURES = ("sans", "serif-italic")  # the fonts in which figures have characters outside of ``COMMON``
FONT_FACE = re.compile(r'@font-face \{[^}]*url\("fonts/([\w-]+)\.woff2"\)[^}]*\}')
OWN_NAMES = (1, 3, 4, 6)  # family, identifier, full name and PostScript name in the table of names
NAMES = [*OWN_NAMES, 0, 2, 5, 13, 14]  # and copyright, style, version and licence


@dataclass(frozen=True)
class Face:
    """One font of the site.

    The names of its files and family, the font's package and file, the limits of its axes, and its style in CSS.
    """

    name: str
    family: str
    package: str
    file: str
    axes: dict
    style: str = ""

    @property
    def folder(self) -> Path:
        """The folder of the font's package, which is found without being imported."""
        spec = find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(f"the package {self.package} must be installed: pip install -r requirements.txt")
        return Path(spec.submodule_search_locations[0])


SERIF, INTER, CODE = "fontpkg_source_serif_4", "fontpkg_inter", "fontpkg_source_code_pro"
FACES = (
    Face("serif", "Book Serif", SERIF, "SourceSerif4[opsz,wght].ttf", {"opsz": 14, "wght": 400}),
    Face("serif-bold", "Book Serif", SERIF, "SourceSerif4[opsz,wght].ttf", {"opsz": 14, "wght": 700}, "bold"),
    Face(
        "serif-italic", "Book Serif", SERIF, "SourceSerif4-Italic[opsz,wght].ttf", {"opsz": 14, "wght": 400}, "italic"
    ),
    Face("sans", "Book Sans", INTER, "Inter[opsz,wght].ttf", {"opsz": 14, "wght": (400, 700)}),
    Face("code", "Book Code", CODE, "SourceCodePro[wght].ttf", {"wght": 400}),
)


def characters(site: Path) -> set[int]:
    """Return the code points in the pages and scripts of a site, and those of ``COMMON``."""
    found = set(COMMON)
    for path in (*site.rglob("*.html"), *site.glob("_static/*.js")):
        found.update(map(ord, html.unescape(path.read_text(encoding="utf-8"))))
    return found


def reduced(face: Face, wanted: set[int]) -> bytes:
    """Return a font in WOFF2 with the characters ``wanted``, as far as the font has them."""
    options = subset.Options(layout_features=list(FEATURES), hinting=False, notdef_outline=True, name_IDs=NAMES)
    written = io.BytesIO()
    with subset.load_font(face.folder / "files" / face.file, options) as font:
        cutter = subset.Subsetter(options)
        cutter.populate(unicodes=wanted)
        cutter.subset(font)
        instancer.instantiateVariableFont(font, face.axes, inplace=True)
        for record in font["name"].names:
            if record.nameID in OWN_NAMES:
                record.string = face.family
        font.flavor = "woff2"
        font.save(written)
    return written.getvalue()


def stored(face: Face, wanted: set[int], store: Path) -> bytes:
    """Return the reduced font, made once for each version of the font and each set of characters."""
    about = (face.family, face.file, version(face.package.replace("_", "-")), face.axes, FEATURES, sorted(wanted))
    path = store / f"{hashlib.sha256(repr(about).encode()).hexdigest()[:20]}.woff2"
    if not path.exists():
        store.mkdir(parents=True, exist_ok=True)
        path.write_bytes(reduced(face, wanted))
    return path.read_bytes()


def write_fonts(app, exception) -> None:
    """Write the fonts of ``FACES`` into the site."""
    if exception is not None or app.builder.format != "html":
        return
    site = Path(app.outdir)
    folder = site / "_static" / "fonts"
    folder.mkdir(parents=True, exist_ok=True)
    used = characters(site)
    for face in FACES:
        for suffix, wanted in (("", COMMON), ("-other", used - COMMON)):
            (folder / f"{face.name}{suffix}.woff2").write_bytes(stored(face, wanted, site.parent / "fonts"))
        (folder / f"{face.name}-LICENSE.txt").write_bytes((face.folder / "LICENSE").read_bytes())
    style = folder.parent / "typeface.css"
    css = style.read_text(encoding="utf-8")
    bold = next(rule[0] for rule in FONT_FACE.finditer(css) if rule[1] == BOLD)
    contained = {face.name for face in FACES}
    style.write_text(with_fonts(css.replace(bold, ""), folder, contained), encoding="utf-8")
    (folder.parent / "typeface-bold.css").write_text(with_fonts(bold, folder, contained), encoding="utf-8")


def with_fonts(css: str, folder: Path, names: set[str]) -> str:
    """Return a style sheet with the named fonts of a folder as ``data:`` addresses."""

    def written(rule: re.Match) -> str:
        if rule[1] not in names:
            return rule[0]
        data = base64.b64encode((folder / f"{rule[1]}.woff2").read_bytes()).decode()
        return rule[0].replace(f"fonts/{rule[1]}.woff2", f"data:font/woff2;base64,{data}")

    return FONT_FACE.sub(written, css)


def decode_early(app, pagename, templatename, context, doctree) -> None:
    """Add the script that decodes the fonts, and the style sheet with the bold font where it is used."""
    has_bold = pagename != app.config.root_doc and templatename != "explorer.html"
    if has_bold:
        app.add_css_file("typeface-bold.css", priority=601)
    faces = {face.name: f'{face.style} 1em "{face.family}"'.strip() for face in FACES}
    fonts = [[font] for name, font in faces.items() if has_bold or name != BOLD]
    fonts += [[ICONS]] if templatename != "explorer.html" else []
    if 'class="cell ' in context.get("body", ""):
        fonts += [[faces[name], "\u2192"] for name in OF_FIGURES]
    context["decode_fonts"] = DECODE % json.dumps(fonts)
    app.add_js_file(None, body=context["decode_fonts"], priority=100)


def setup(app) -> dict:
    """Register with Sphinx."""
    app.add_css_file("typeface.css", priority=600)
    app.connect("html-page-context", decode_early)
    app.connect("build-finished", write_fonts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
