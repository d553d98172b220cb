"""The page ``404.html``, which GitHub Pages and most other servers show for an address that does not exist.

It is shown at the wrong address, at any depth, where relative links lead nowhere. Once the site has an address, all
links of this page begin with the site's path on its server, such as ``/attention-book/``.
"""

import re
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from catalogs import gettext

PAGE = "404"
RELATIVE = re.compile(r'(?P<name>\s(?:href|src|action|data-content_root)=)"(?!#|/|[a-z][a-z\d+.-]*:)(?P<path>[^"]*)"')
BODY = """<section id="page-not-found">
<h1>{title}</h1>
<p>{reasons}</p>
<form class="not-found" action="{search}" method="get" role="search">
<input type="search" name="q" aria-label="{search_book}" placeholder="{examples}">
<button>{search_now}</button>
</form>
<ul>
<li>{to_first}</li>
<li>{to_explorers}</li>
<li>{to_index}</li>
</ul>
</section>"""


def collect(app) -> list[tuple[str, dict, str]]:
    """Return the page, in the form that Sphinx expects of pages without a source."""
    uri = app.builder.get_relative_uri
    names = {"search": "search", "first": app.config.root_doc, "explorers": "book/explorers", "index": "genindex"}
    to = {key: uri(PAGE, name) for key, name in names.items()}
    words = {
        "title": gettext("Page not found"),
        "reasons": gettext(
            "There is no page at this address. The page may have moved, or the address may have a typing error."
        ),
        "search_book": gettext("Search the book"),
        "examples": gettext("RoPE, KV cache, why sqrt …"),
        "search_now": gettext("Search"),
        "to_first": gettext('<a href="{first}">The first page</a> lists all chapters.').format(**to),
        "to_explorers": gettext('<a href="{explorers}">Explorers</a> shows all figures that you can change.').format(
            **to
        ),
        "to_index": gettext('<a href="{index}">Index</a> lists the functions of the library.').format(**to),
    }
    return [(PAGE, {"title": words["title"], "body": BODY.format(**words, search=to["search"])}, "page.html")]


def keep_out_of_search_engines(app, pagename, templatename, context, doctree) -> None:
    """Tell search engines not to list the page."""
    if pagename == PAGE:
        context["metatags"] = f'{context.get("metatags", "")}\n<meta name="robots" content="noindex">'


def with_absolute_links(page: str, base: str) -> str:
    """Return the HTML of a page in the site's root, whose relative links now begin with ``base``.

    >>> with_absolute_links('<a href="book/intro.html">', "/attention-book/")
    '<a href="/attention-book/book/intro.html">'
    """
    return RELATIVE.sub(lambda found: f'{found["name"]}"{urljoin(base, found["path"])}"', page)


def write_absolute_links(app, exception) -> None:
    """Make the links of the page absolute, if the site has an address."""
    if exception is not None or app.builder.format != "html" or not app.config.html_baseurl:
        return
    base = urlsplit(app.config.html_baseurl).path.rstrip("/") + "/"
    path = Path(app.outdir, f"{PAGE}.html")
    path.write_text(with_absolute_links(path.read_text(encoding="utf-8"), base), encoding="utf-8")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("html-collect-pages", collect)
    app.connect("html-page-context", keep_out_of_search_engines, priority=900)
    app.connect("build-finished", write_absolute_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
