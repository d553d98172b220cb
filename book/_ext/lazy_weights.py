"""Load the weights of trained models when the reader scrolls near their explorer, not with the page.

An explorer's output contains all of its scripts and data. On a page, a large part is moved to its own file, a classic
script, which also loads over the ``file:`` protocol. Scripts that need the part are deactivated and carry the file's
address, until ``book.js`` has fetched it; until then the page shows the explorer's static picture. An explorer at the
lower edge of the first screen waits, too, until the reader scrolls. A part that a script
requests itself (``window.xLater``) is fetched at that time; the file's address is added to the script's call.
"""

import re
from pathlib import Path

HEAVY = 30_000  # characters
SCRIPT = re.compile(r'<script(?P<part> data-part="(?P<key>[^"]+)")?>(?P<text>.*?)</script>', re.DOTALL)


def extract_heavy_parts(body: str, address: str) -> tuple[str, dict[str, str]]:
    """Return the page's body without its large parts, and these parts by their keys.

    ``address`` is the address of the folder to which the parts will be written.
    """
    files: dict[str, str] = {}
    needs: dict[str, list[str]] = {}  # by key: the files that must be fetched before the part can run

    def deactivate(script: re.Match) -> str:
        key, text = script["key"], script["text"]
        if key and len(text) > HEAVY:
            files[key], needs[key] = text, [f"{address}/{key}.js"]
            return ""
        for other in files:
            text = text.replace(f'("{other}")', f'("{other}","{address}/{other}.js")')
        needed = [file for other, wanted in needs.items() if f'["{other}"]' in text for file in wanted]
        if not needed:
            return f"<script{script['part'] or ''}>{text}</script>"
        if key:
            needs[key] = needed
        inactive = f'type="text/plain" data-later="{" ".join(dict.fromkeys(needed))}"'
        return f"<script{script['part'] or ''} {inactive}>{text}</script>"

    return SCRIPT.sub(deactivate, body), files


def write_heavy_parts(app, pagename, templatename, context, doctree) -> None:
    """Write the large parts of a page to files of their own."""
    address = context["pathto"]("_static/parts", 1)
    context["body"], files = extract_heavy_parts(context.get("body") or "", address)
    for key, text in files.items():
        file = Path(app.outdir, "_static", "parts", f"{key}.js")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", write_heavy_parts, priority=950)  # after ``cell_folding.drop_repeated_parts``
    return {"parallel_read_safe": True, "parallel_write_safe": True}
