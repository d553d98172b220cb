"""What a trained model weighs is fetched when the reader comes near its explorer, not with the page.

An explorer's output carries all that it needs. Of a page, a heavy part becomes a file of its own, a classic script that
a page opened from the disk can load too; the scripts that need it are put to sleep, with the file's address, until
``book.js`` has fetched it. So long the explorer's still picture stands there. A part that a script asks for by itself
(``window.xLater``) is fetched then; the script is told its address.
"""

import re
from pathlib import Path

HEAVY = 50_000  # characters
SCRIPT = re.compile(r'<script(?P<part> data-part="(?P<key>[^"]+)")?>(?P<text>.*?)</script>', re.DOTALL)


def put_off(body: str, address: str) -> tuple[str, dict[str, str]]:
    """Return the page's body without its heavy parts, and these by their keys.

    ``address`` is that of the folder in which they will lie.
    """
    files: dict[str, str] = {}
    needs: dict[str, list[str]] = {}  # of a part's key: what has to be fetched before it can run

    def late(script: re.Match) -> str:
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
        asleep = f'type="text/plain" data-later="{" ".join(dict.fromkeys(needed))}"'
        return f"<script{script['part'] or ''} {asleep}>{text}</script>"

    return SCRIPT.sub(late, body), files


def fetch_near(app, pagename, templatename, context, doctree) -> None:
    """Write the heavy parts of a page beside the others."""
    address = context["pathto"]("_static/parts", 1)
    context["body"], files = put_off(context.get("body") or "", address)
    for key, text in files.items():
        file = Path(app.outdir, "_static", "parts", f"{key}.js")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", fetch_near, priority=950)  # after ``reading.once``
    return {"parallel_read_safe": True, "parallel_write_safe": True}
