"""The site's front door, ``index.html``: it leads to the first page, and has a name and an icon while it does.

Jupyter Book would write one of a single line; of a page that names no icon a browser asks ``/favicon.ico`` in vain. The
icon lies in the page itself: a browser that is led on gives up what it is still fetching.
"""

import html
from pathlib import Path
from urllib.parse import quote

from sharing import tags_of

DOOR = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
{tags}<link rel="icon" href="{icon}">
<meta http-equiv="refresh" content="0; url={first}">
<p><a href="{first}">{title}</a></p>
</html>
"""


def open_the_door(app, exception) -> None:
    """Write it, unless a page of the book has that name."""
    door = Path(app.outdir, "index.html")
    if exception is None and app.builder.format == "html" and app.config.root_doc != "index":
        title = html.escape(app.config.html_title)
        drawn = Path(app.outdir, "_static", Path(app.config.html_favicon).name).read_text(encoding="utf-8")
        first = quote(app.builder.get_target_uri(app.config.root_doc))
        root = app.config.root_doc
        tags = tags_of(app, root, app.env.get_doctree(root))
        if app.config.html_baseurl:
            tags += f'<link rel="canonical" href="{app.config.html_baseurl.rstrip("/")}/{first}">\n'
        door.write_text(
            DOOR.format(title=title, tags=tags, icon=f"data:image/svg+xml,{quote(drawn)}", first=first),
            encoding="utf-8",
        )


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("build-finished", open_the_door)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
