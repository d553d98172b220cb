"""Keep the built site independent of the network, and small: no CDN, and only the icons in use."""

import re
from pathlib import Path

from fontTools import subset

# Scripts and style sheets of other extensions, and what a page contains if it needs them.
NEEDED_FOR = {
    "sphinx-design.min.css": 'class="sd-',
    "design-tabs.js": 'class="sd-tab',
    "clipboard.min.js": '<div class="highlight',
    "copybutton.js": '<div class="highlight',
    "copybutton.css": '<div class="highlight',
    "mystnb.": 'class="cell',
}

ICON_RULE = re.compile(r'((?:\.fa-[\w-]+::?before,?)+)\{(?:content|--fa):"\\([0-9a-f]+)"\}')


def drop_icon_script(app, exception) -> None:
    """Empty the theme's icon script of half a megabyte; the style sheet has the same icons as fonts."""
    if exception is None and app.builder.format == "html":
        Path(app.outdir, "_static", "scripts", "fontawesome.js").write_text("")


def keep_used_icons(app, exception) -> None:
    """Reduce the theme's icon fonts, a quarter of a megabyte, and their style rules to the icons that are used."""
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

    def kept(rule: re.Match) -> str:
        return rule[0] if used & set(re.findall(r"fa-[\w-]+", rule[1])) else ""

    for style in static.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        if (shorter := ICON_RULE.sub(kept, text)) != text:
            style.write_text(shorter, encoding="utf-8")


# The theme makes what scrolls reachable by keyboard. It asks for the layout of one element after another, changes each
# in between, and also asks in closed folds: a second and a half of a slow phone's time as a page arrives.
TAB_STOPS = re.compile(
    r"(document\.querySelectorAll\(\[[^\]]*\]\.join\(\", \"\)\))\.forEach\(e=>\{e\.tabIndex="
    r"(e\.scrollWidth>e\.clientWidth\|\|e\.scrollHeight>e\.clientHeight)\?0:-1\}\)"
)
TAB_STOPS_AT_ONCE = (
    r"const a=Array.from(\1).filter(e=>!e.checkVisibility||e.checkVisibility()),s=a.map(e=>\2);"
    r"a.forEach((e,i)=>{const n=s[i]?0:-1;e.tabIndex===n||(e.tabIndex=n)})"
)
ON_RESIZE = 'window.addEventListener("resize",t),new MutationObserver(t)'
ON_RESIZE_OR_FOLD = ON_RESIZE.replace(",new", ',document.addEventListener("toggle",t,!0),new')


def measure_at_once(app, exception) -> None:
    """Let the theme measure all visible elements before it changes any, and the others when their fold opens.

    Raises:
        ValueError: if the theme's script is another one than the one that is changed here.
    """
    if exception is not None or app.builder.format != "html":
        return
    script = Path(app.outdir, "_static", "scripts", "pydata-sphinx-theme.js")
    text, changed = TAB_STOPS.subn(TAB_STOPS_AT_ONCE, script.read_text(encoding="utf-8"))
    if changed != 1 or text.count(ON_RESIZE) != 1:
        raise ValueError(f"expected the tab stops of pydata-sphinx-theme in {script}; has the theme been updated?")
    script.write_text(text.replace(ON_RESIZE, ON_RESIZE_OR_FOLD), encoding="utf-8")


def drop_thebe(app, pagename, templatename, context, doctree) -> None:
    """Remove sphinx-thebe, which the book does not use: its scripts conflict with each other and refer to a CDN."""

    def is_thebe(asset) -> bool:
        body = getattr(asset, "attributes", {}).get("body") or ""
        return "THEBE_JS_URL" in body or "sphinx-thebe" in str(getattr(asset, "filename", asset) or "")

    for kind in ("script_files", "css_files"):
        context[kind] = [asset for asset in context[kind] if not is_thebe(asset)]


def drop_unused(app, pagename, templatename, context, doctree) -> None:
    """Remove the scripts and style sheets of ``NEEDED_FOR`` from pages that do not need them."""
    body = context.get("body") or ""

    def is_needed(asset) -> bool:
        name = str(getattr(asset, "filename", asset) or "").rsplit("/", 1)[-1]
        marks = [mark for start, mark in NEEDED_FOR.items() if name.startswith(start)]
        return not marks or marks[0] in body

    for kind in ("script_files", "css_files"):
        context[kind] = [asset for asset in context[kind] if is_needed(asset)]


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("build-finished", drop_icon_script)
    app.connect("build-finished", keep_used_icons)
    app.connect("build-finished", measure_at_once)
    app.connect("html-page-context", drop_thebe, priority=900)
    app.connect("html-page-context", drop_unused, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
