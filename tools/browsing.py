"""A browser without a window, and a way to serve a folder to it: for the tests, the screenshot and the benchmark."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

# The first is the same engine without what draws a window: with it the site's tests take three fifths of the time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "no Chromium here: install one (Debian: apt-get install chromium-headless-shell) or name it in CHROMIUM"
QUIET = ("--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")
# The network is off, this machine apart: every other name leads nowhere.
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"


def launch(playwright):
    """Start Chromium under Playwright, its network off, or say how to get one."""
    path = find_chromium()
    if path is None:
        raise FileNotFoundError(MISSING)
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    no_sandbox = ("--no-sandbox",) if is_root else ()  # Chromium refuses its sandbox to root
    return playwright.chromium.launch(executable_path=path, args=["--no-first-run", OFFLINE, *QUIET, *no_sandbox])


def find_chromium() -> str | None:
    """Return the path of the browser that CHROMIUM names, or of the first that is installed."""
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
