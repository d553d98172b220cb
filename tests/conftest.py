"""Shared fixtures: a fixed seed, double precision, reproducible property tests, browser and touch input."""

import gc
import os
from itertools import pairwise

import jaxtyping
import pytest
import torch
from browsing import launch, why_no_browser
from hypothesis import settings
from tabs import Tabs

gc.disable()  # until all tests are collected

# With these variables pytest prints the full difference of compared lists, which takes 20 minutes for two masks.
for name in ("CI", "BUILD_NUMBER"):
    os.environ.pop(name, None)

# No deadline, since a busy machine is not a failure. Derandomised, so that failures are reproducible.
settings.register_profile("book", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("quick", settings.get_profile("book"), max_examples=5)
settings.register_profile("few", settings.get_profile("book"), max_examples=20)
settings.register_profile("many", settings.get_profile("book"), max_examples=100)
settings.load_profile("book")


def pytest_itemcollected(item):
    """Mark as thorough what ``altered`` scripts get, and all cases but the first of tests marked ``one_case``.

    Whether a test catches wrong implementations changes only with the test.
    """
    repeats = hasattr(item, "callspec") and any(item.callspec.indices.values())
    if "altered" in getattr(item, "fixturenames", ()) or (item.get_closest_marker("one_case") and repeats):
        item.add_marker(pytest.mark.thorough)


def pytest_collection_finish():
    """Exempt what exists now from searches for garbage, which took a twelfth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Keep the tests of a group in one process: pytest 9.2 ignores the attribute where xdist 3.8 stores the group."""
    if config.getoption("loadgroup", False):
        for item in items:
            if "@" in (named := vars(item).get("_nodeid", "")):
                item._id = type(item._id).parse(named)


@pytest.fixture(autouse=True)
def shapes_checked(request):
    """Disable jaxtyping's shape checks in tests marked ``rejects``, which pass invalid input to the library.

    Shape checks run only with ``--jaxtyping-packages``, which `tools/run_tests.py` sets.
    """
    rejects = request.node.get_closest_marker("rejects") is not None
    jaxtyping.config.update("jaxtyping_disable", rejects)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


# Without a GPU, manual_seed stores the call and its stack for each kind of GPU, which takes longer than many tests.
seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def seeded() -> None:
    seed(0)


@pytest.fixture(autouse=True)
def double_precision():
    """Set float64 as the default dtype, so that rounding errors are far below any tolerance."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(params=[torch.float32, torch.float64])
def either_precision(request, double_precision):
    """Run the test in float32 and in float64; ``double_precision`` restores the default dtype."""
    torch.set_default_dtype(request.param)


@pytest.fixture
def stub():
    """The function in a student's notebook before it is implemented."""

    def unanswered(*_):
        raise NotImplementedError

    return unanswered


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium. If there is none, the test is skipped, or fails if REQUIRE_BROWSER=1 is set."""
    if missing := why_no_browser():
        (pytest.fail if os.environ.get("REQUIRE_BROWSER") == "1" else pytest.skip)(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = launch(playwright)
        chromium.new_context = with_long_timeout(chromium.new_context)
        chromium.new_page = with_long_timeout(chromium.new_page)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def tabs(browser):
    """Tabs of the browser that tests use one after another."""
    kept = Tabs(browser)
    yield kept
    kept.close()


def with_long_timeout(make):
    """Wrap ``make`` so that its windows wait two minutes instead of half a minute, for busy machines."""

    def opened(**options):
        window = make(**options)
        window.set_default_timeout(120_000)
        return window

    return opened


@pytest.fixture
def finger():
    """Move a finger over a page with real touch events, which the page may also interpret as scrolling."""

    def drawn(page, *places, hold=0.0):
        """Touch the window at the first of ``places`` and move to the others; a single place is a tap or a press."""
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
