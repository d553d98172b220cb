"""Tests of the tabs that tests use one after another: what one test changes in a tab, the next does not find."""

import pytest
from browsing import serve
from tabs import Tabs, listening

pytestmark = pytest.mark.browser

SIZE, NARROW = {"width": 900, "height": 900}, {"width": 360, "height": 900}
LEFT = """() => [localStorage.length, sessionStorage.length, innerWidth, matchMedia("print").matches,
  "__pwClock" in window, document.querySelector("p").matches(":hover")]"""
CHANGES = {
    "stored": lambda page: page.evaluate("localStorage.one = sessionStorage.two = 3"),
    "printed": lambda page: page.emulate_media(media="print"),
    "resized": lambda page: page.set_viewport_size(NARROW),
    "stopped": lambda page: page.clock.install(time=0),
    "pressed": lambda page: (page.locator("p").hover(), page.mouse.down()),
}


@pytest.fixture
def address(tmp_path):
    (tmp_path / "page.html").write_text("<!doctype html><link rel=icon href='data:,'><p style='margin: 99px'>one")
    with serve(tmp_path) as served:
        yield f"{served}/page.html"


@pytest.fixture
def own(browser):
    kept = Tabs(browser)
    yield kept
    kept.close()


@pytest.mark.parametrize("leave", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_next_test_does_not_find_what_one_changes(own, address, change, leave):
    for _ in range(2):
        with own.lent(SIZE, leave=leave) as page:
            page.goto(address)
            assert page.evaluate(LEFT) == [0, 0, 900, False, False, False]
            CHANGES[change](page)
            assert page.evaluate(LEFT) != [0, 0, 900, False, False, False]


def test_a_tab_is_lent_again_but_not_twice_at_once_nor_with_other_options(own, address):
    with own.lent(SIZE) as first:
        first.goto(address)
        with own.lent(SIZE) as second:
            second.goto(address)
        assert second is not first
    with own.lent(SIZE) as again, own.lent(SIZE, color_scheme="dark") as dark:
        assert again is second or again is first
        assert dark not in (first, second)


def test_a_tab_in_which_a_test_fails_is_not_used_again(own, address):
    with pytest.raises(ZeroDivisionError), own.lent(SIZE) as failed:
        1 / 0  # noqa: B018
    assert failed.is_closed()
    with own.lent(SIZE) as page:
        assert page is not failed


def test_listening_ends_with_its_context(own, address):
    heard = []
    with own.lent(SIZE) as page:
        with listening(page, {"request": lambda request: heard.append(request.url)}):
            page.goto(address)
        page.goto(f"{address}?again")
    assert heard == [address]
