"""The built site, served on this machine, and pages that see nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from browsing import serve
from built_site import HTML


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


@dataclass
class Seen:
    """What a page asked for and complained about."""

    external: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def watch(self, page, allowed: str) -> None:
        page.on(
            "request", lambda r: None if r.url.startswith((allowed, "data:", "blob:")) else self.external.append(r.url)
        )
        page.on("response", lambda r: self.failed.append(f"{r.status} {r.url}") if r.status >= 400 else None)
        page.on("requestfailed", lambda r: self.failed.append(r.url))
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)


@pytest.fixture
def visit(browser, site):
    """Open a page of the site, or of the same files without a server, with the rest of the network blocked."""

    @contextmanager
    def open_page(path: str, *, from_files: bool = False, width: int = 1280, **context):
        with_scripts = context.get("java_script_enabled", True)
        base = HTML.as_uri() if from_files else site
        own = browser.new_context(viewport={"width": width, "height": 900}, **context)
        own.route("**/*", lambda r: r.continue_() if r.request.url.startswith((base, "data:", "blob:")) else r.abort())
        page = own.new_page()
        page.seen = Seen()
        page.seen.watch(page, base)
        page.goto(f"{base}/{path}")
        page.wait_for_load_state("networkidle")
        if with_scripts:  # MathJax is asynchronous, and "networkidle" does not wait for its typesetting
            page.evaluate("window.MathJax?.startup?.promise")
        yield page
        own.close()

    return open_page
