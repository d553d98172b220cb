"""One seed and one precision for every test, property tests that draw the same examples, and what tests share."""

import os
from itertools import pairwise

import jaxtyping
import pytest
import torch
from browsing import launch, why_no_browser
from hypothesis import settings

# No deadline: a busy machine is not a failure. Derandomised: a red test is red again.
settings.register_profile("book", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("quick", settings.get_profile("book"), max_examples=5)
settings.register_profile("few", settings.get_profile("book"), max_examples=20)
settings.register_profile("many", settings.get_profile("book"), max_examples=100)
settings.load_profile("book")


def pytest_itemcollected(item):
    """Leave all cases but the first to ``make test-all`` where a test tries wrong implementations, or is marked so.

    That a test would notice a mistake changes only with the test; one mistake shows that it still looks.
    """
    one_case = item.get_closest_marker("one_case") or "altered" in getattr(item, "fixturenames", ())
    if one_case and hasattr(item, "callspec") and any(item.callspec.indices.values()):
        item.add_marker(pytest.mark.thorough)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Keep the tests of a group in one process: xdist 3.8 names the group where pytest 9.2 does not read it."""
    if config.getoption("loadgroup", False):
        for item in items:
            if "@" in (named := vars(item).get("_nodeid", "")):
                item._id = type(item._id).parse(named)


@pytest.fixture(autouse=True)
def shapes_checked(request):
    """Whether the shapes in signatures are executed: not where a test feeds wrong input, to see the library refuse it.

    Without ``--jaxtyping-packages``, as `tools/run_tests.py` gives it, they are comments in any test.
    """
    rejects = request.node.get_closest_marker("rejects") is not None
    jaxtyping.config.update("jaxtyping_disable", rejects)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def double_precision():
    """Rounding far below any tolerance; a test of another precision names it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(params=[torch.float32, torch.float64])
def either_precision(request, double_precision):
    """Run the test in each precision that a notebook may be set to; ``double_precision`` sets it back."""
    torch.set_default_dtype(request.param)


@pytest.fixture
def stub():
    """What a student's notebook holds before it is answered."""

    def unanswered(*_):
        raise NotImplementedError

    return unanswered


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window. Without one the test is skipped, or fails if REQUIRE_BROWSER=1 says it must run."""
    if missing := why_no_browser():
        (pytest.fail if os.environ.get("REQUIRE_BROWSER") == "1" else pytest.skip)(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = launch(playwright)
        chromium.new_context, chromium.new_page = patient(chromium.new_context), patient(chromium.new_page)
        yield chromium
        chromium.close()


def patient(make):
    """Let what ``make`` opens wait two minutes instead of half a minute: a busy machine is not a failure."""

    def opened(**options):
        window = make(**options)
        window.set_default_timeout(120_000)
        return window

    return opened


@pytest.fixture
def finger():
    """Put a finger on a page, draw it along, and lift it: real touch events, which the page may take for scrolling."""

    def drawn(page, *places, hold=0.0):
        """``places`` are points of the window; with one place, or none after it, it is a tap or, held, a press."""
        session = page.context.new_cdp_session(page)

        def send(kind, *at):
            points = [{"x": x, "y": y} for x, y in at]
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        send("touchStart", places[0])
        page.wait_for_timeout(1000 * hold)
        for (x0, y0), (x1, y1) in pairwise(places):
            for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
                send("touchMove", (x0 + share * (x1 - x0), y0 + share * (y1 - y0)))
                page.wait_for_timeout(5)
        send("touchEnd")
        page.evaluate("new Promise(requestAnimationFrame)")

    return drawn
