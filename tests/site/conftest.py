"""Fixtures for tests of the built site: serve it, measure each page in one visit, and open pages."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import pytest
from browsing import serve
from built_site import HTML
from visits import (
    WIDE,
    Measured,
    Seen,
    WithoutScripts,
    each_of,
    examine,
    is_examined_later,
    look_without_scripts,
    measure,
    open_and_settle,
)


def pytest_generate_tests(metafunc):
    """Parametrise tests with the argument ``path`` over every page of the site, unless they do so themselves."""
    chosen = any("path" in marker.args[0] for marker in metafunc.definition.iter_markers("parametrize"))
    if "path" in metafunc.fixturenames and not chosen:
        pages = sorted(str(page.relative_to(HTML)) for page in HTML.rglob("*.html") if not is_part_of_another(page))
        pages = [page for page in pages if page != "404.html"]  # test_not_found.py: it stands at no address of its own
        later = is_examined_later if "violations" in metafunc.fixturenames else None
        metafunc.parametrize(*each_of(pages or ["the site has not been built: run make book"], later).args)


def is_part_of_another(page: Path) -> bool:
    """Return whether a file is not a page that readers see: a file of the theme, or a page that redirects."""
    return "_static" in page.parts or page.parent.name == "questions"


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    with serve(HTML) as address:
        yield address


@pytest.fixture(scope="session")
def measured_at(browser, site) -> Iterator[Callable[[str], Measured]]:
    """Return the measurements of a page, taken at the first call, in a browser context with a shared cache."""
    context = browser.new_context(viewport=WIDE, color_scheme="light")
    yield cache(partial(measure, context, HTML, site))
    context.close()


@pytest.fixture
def measured(measured_at, path) -> Measured:
    return measured_at(path)


@pytest.fixture(scope="session")
def examined_at(tabs, site) -> Callable[[str], dict[str, list[str]]]:
    """Return the accessibility violations of a page that axe does not examine while it is measured."""

    @cache
    def visited(path: str) -> dict[str, list[str]]:
        with tabs.lent(WIDE) as page:
            open_and_settle(page, Seen(), f"{site}/{path}")
            return examine(page)

    return visited


@pytest.fixture
def violations(measured_at, examined_at, path) -> dict[str, list[str]]:
    """The serious accessibility violations of a page, by theme."""
    return examined_at(path) if is_examined_later(path) else measured_at(path).violations


@pytest.fixture(scope="session")
def without_scripts(tabs, site) -> Iterator[Callable[[str], WithoutScripts]]:
    """Return what a page shows without JavaScript, looked at at the first call."""
    with tabs.lent(WIDE, java_script_enabled=False) as page:
        yield cache(lambda path: look_without_scripts(page, f"{site}/{path}"))


@pytest.fixture
def visit(tabs, site):
    """Open a page of the site, from the server or from files; it must load without errors and external requests."""

    @contextmanager
    def open_page(path: str, *, from_files: bool = False, **options):
        with_scripts = options.get("java_script_enabled", True)
        base, seen = HTML.as_uri() if from_files else site, Seen()
        with tabs.lent(WIDE, **options) as page, seen.watch(page, base):
            page.seen = seen
            open_and_settle(page, seen, f"{base}/{path}", with_scripts=with_scripts)
            if with_scripts:  # without scripts, their requests count as failed
                assert seen == Seen()
            yield page

    return open_page
