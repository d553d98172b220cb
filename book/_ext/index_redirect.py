"""Write the site's ``index.html``, which redirects to the first page and has a title, an icon and metadata.

Jupyter Book's own ``index.html`` has a single line. A browser requests ``/favicon.ico``, which does not exist, for a
page that names no icon. The icon is embedded in the page, since a browser cancels pending requests when it is
redirected.
"""

import html
from pathlib import Path
from urllib.parse import quote

from catalogs import language_of_page
from opengraph import page_tags, site_address

TEMPLATE = """<!doctype html>
<html lang="{language}">
<meta charset="utf-8">
<title>{title}</title>
{tags}<link rel="icon" href="{icon}">
<meta http-equiv="refresh" content="0; url={first}">
<p><a href="{first}">{title}</a></p>
</html>
"""


def write_index(app, exception) -> None:
    """Write ``index.html``, unless a page of the book has that name."""
    index = Path(app.outdir, "index.html")
    if exception is None and app.builder.format == "html" and app.config.root_doc != "index":
        title = html.escape(app.config.html_title)
        icon = Path(app.outdir, "_static", Path(app.config.html_favicon).name).read_text(encoding="utf-8")
        first = quote(app.builder.get_target_uri(app.config.root_doc))
        root = app.config.root_doc
        tags = page_tags(app, root, app.env.get_doctree(root))
        if base := site_address(app.config):
            tags += f'<link rel="canonical" href="{base}{first}">\n'
        index.write_text(
            TEMPLATE.format(
                title=title,
                tags=tags,
                icon=f"data:image/svg+xml,{quote(icon)}",
                first=first,
                language=language_of_page(app.env, root),
            ),
            encoding="utf-8",
        )


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("build-finished", write_index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
