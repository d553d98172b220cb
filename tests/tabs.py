"""Tabs of the browser that tests use one after another.

A new tab starts a process, fetches all files and compiles all scripts: a page takes twice as long in it as in a tab
that has shown another page of the site.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Delete what is stored, and return whether no clock is installed: a tab keeps it.
CLEAN = """() => {
  if (location.protocol !== "about:") for (const store of [localStorage, sessionStorage]) store.clear();
  return !("__pwClock" in window);
}"""


class Tabs:
    """One tab for each set of options of a context; one in which a test has failed is not used again.

    Do not install a script or a route in such a tab: they would stay for other tests.
    """

    def __init__(self, browser):
        self._browser, self._kept = browser, {}

    @contextmanager
    def lent(self, viewport: dict[str, int], *, leave: bool = True, **options) -> Iterator:
        """Lend a tab of this size, with nothing stored and the mouse in its corner.

        To ``leave`` its page in the end stops all that moves in it and all that it loads, and takes a little time.
        """
        key = repr(sorted(options.items()))
        page = self._kept.pop(key, None)
        if page is None:
            page = self._browser.new_context(viewport=viewport, **options).new_page()
        elif page.viewport_size != viewport:
            page.goto("about:blank")  # else the old page is laid out once more
            page.set_viewport_size(viewport)
        try:
            yield page
        except BaseException:
            page.context.close()
            raise
        if key in self._kept or not page.evaluate(CLEAN):
            page.context.close()
            return
        page.emulate_media(media="null")
        page.mouse.up()
        page.mouse.move(0, 0)
        if leave:
            page.goto("about:blank")
        self._kept[key] = page

    def close(self) -> None:
        """Close all tabs."""
        while self._kept:
            self._kept.popitem()[1].context.close()


@contextmanager
def listening(page, listeners: dict[str, Callable]) -> Iterator[None]:
    """Call these functions at the events of a page, until the context ends."""
    for event, listener in listeners.items():
        page.on(event, listener)
    yield
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
