"""Keep the built site independent of the network, and small: MathJax from a package, no CDN, only the icons in use."""

import re
import shutil
from importlib.metadata import files
from pathlib import Path

from fontTools import subset

PACKAGE = "sphinx-mathjax-offline"
# The files that a page can request: the script, its fonts, and the TeX extensions that \require loads. The rest is
# 22 MB.
WANTED = ("tex-mml-chtml.js", "output/chtml/fonts/woff-v2", "input/tex/extensions")

ICON_RULE = re.compile(r'((?:\.fa-[\w-]+::?before,?)+)\{(?:content|--fa):"\\([0-9a-f]+)"\}')


def mathjax_folder() -> Path:
    """Return MathJax's folder in the package, which cannot be imported because of its name."""
    script = next(f for f in files(PACKAGE) or [] if f.name == WANTED[0])
    return Path(str(script.locate())).parent


def copy_mathjax(app, exception) -> None:
    """Copy the needed files, two megabytes, to the site."""
    if exception is not None or app.builder.format != "html":
        return
    source, target = mathjax_folder(), Path(app.outdir, "_static", "vendor", "mathjax")
    for name in WANTED:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, dirs_exist_ok=True)
        else:
            shutil.copy(source / name, target / name)


def drop_icon_script(app, exception) -> None:
    """Empty the theme's icon script of half a megabyte; the style sheet has the same icons as fonts."""
    if exception is None and app.builder.format == "html":
        Path(app.outdir, "_static", "scripts", "fontawesome.js").write_text("")


def keep_used_icons(app, exception) -> None:
    """Reduce the theme's icon fonts, a quarter of a megabyte, to the icons that a page or a style sheet uses."""
    if exception is not None or app.builder.format != "html":
        return
    static = Path(app.outdir, "_static")
    styles = "".join(path.read_text(encoding="utf-8") for path in static.rglob("*.css"))
    shown = "".join(
        path.read_text(encoding="utf-8") for path in (*Path(app.outdir).rglob("*.html"), *static.rglob("*.js"))
    )
    used = set(re.findall(r"fa-[\w-]+", shown))
    codes = {int(code, 16) for names, code in ICON_RULE.findall(styles) if used & set(re.findall(r"fa-[\w-]+", names))}
    codes |= {int(code, 16) for code in re.findall(r'"\\([ef][0-9a-f]{3})"', ICON_RULE.sub("", styles))}
    for font_file in static.glob("vendor/fontawesome/webfonts/*.woff2"):
        options = subset.Options(flavor="woff2", layout_features=[])
        font = subset.load_font(font_file, options)
        cutter = subset.Subsetter(options)
        cutter.populate(unicodes=codes)
        cutter.subset(font)
        subset.save_font(font, font_file, options)


def drop_thebe(app, pagename, templatename, context, doctree) -> None:
    """Remove sphinx-thebe, which the book does not use: its scripts conflict with each other and refer to a CDN."""

    def is_thebe(asset) -> bool:
        body = getattr(asset, "attributes", {}).get("body") or ""
        return "THEBE_JS_URL" in body or "sphinx-thebe" in str(getattr(asset, "filename", asset) or "")

    for kind in ("script_files", "css_files"):
        context[kind] = [asset for asset in context[kind] if not is_thebe(asset)]


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("build-finished", copy_mathjax)
    app.connect("build-finished", drop_icon_script)
    app.connect("build-finished", keep_used_icons)
    app.connect("html-page-context", drop_thebe, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
