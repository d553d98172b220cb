"""The built site, served on this machine, and pages that see nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from browsing import serve
from built_site import HTML, Seen


def pytest_generate_tests(metafunc):
    """Parametrise tests that take ``path``, and do not choose it themselves, over every page of the site."""
    chosen = any("path" in marker.args[0] for marker in metafunc.definition.iter_markers("parametrize"))
    if "path" in metafunc.fixturenames and not chosen:
        pages = sorted(str(page.relative_to(HTML)) for page in HTML.rglob("*.html") if "_static" not in page.parts)
        metafunc.parametrize("path", pages or ["the site has not been built: run make book"])


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    with serve(HTML) as address:
        yield address


@pytest.fixture
def visit(browser, site):
    """Open a page of the site, or of the same files without a server; it must load, ask for nothing else, be quiet.

    Typesetting the formulas is most of the time that a chapter takes; without ``formulas`` they stay TeX.
    """

    @contextmanager
    def open_page(path: str, *, from_files: bool = False, width: int = 1280, formulas: bool = True, **context):
        with_scripts = context.get("java_script_enabled", True)
        base = HTML.as_uri() if from_files else site
        own = browser.new_context(viewport={"width": width, "height": 900}, **context)
        own.route("**/*", lambda r: r.continue_() if r.request.url.startswith((base, "data:", "blob:")) else r.abort())
        if not formulas:
            own.route("**/vendor/mathjax/*.js", lambda r: r.fulfill(body="", content_type="text/javascript"))
        page = own.new_page()
        page.seen = Seen()
        page.seen.watch(page, base)
        page.goto(f"{base}/{path}")
        page.wait_for_load_state("networkidle")
        if with_scripts:  # without them, what was fetched for them counts as failed
            page.evaluate("window.MathJax?.startup?.promise")
            assert page.seen == Seen()
        yield page
        own.close()

    return open_page
