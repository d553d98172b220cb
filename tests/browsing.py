"""A browser for the tests, and a way to serve a folder to it: a pytest plugin, and two functions for the tools."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "no Chromium here: install one (Debian and Ubuntu: apt-get install chromium) or name it in CHROMIUM"
QUIET = ("--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window. Without one the test is skipped, or fails if REQUIRE_BROWSER=1 says it must run."""
    if find_chromium() is None:
        (pytest.fail if os.environ.get("REQUIRE_BROWSER") == "1" else pytest.skip)(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = launch(playwright)
        yield chromium
        chromium.close()


def launch(playwright):
    """Start Chromium under Playwright, or say how to get one."""
    path = find_chromium()
    if path is None:
        raise FileNotFoundError(MISSING)
    no_sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()  # Chromium refuses its sandbox to root
    return playwright.chromium.launch(executable_path=path, args=["--no-first-run", *QUIET, *no_sandbox])


def find_chromium() -> str | None:
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve the folder on this machine alone for the length of a ``with``, which is given the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".js": "text/javascript"}

    def log_message(self, *_) -> None:
        """Say nothing: a test that fails says enough."""
