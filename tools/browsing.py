"""Start a headless Chromium and serve a folder to it, for the tests, the screenshot and the benchmark."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

# The first is a build without a user interface, with which the site's tests take three fifths of the time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "no Chromium here: install one (Debian: apt-get install chromium-headless-shell) or name it in CHROMIUM"
NO_DRIVER = "Playwright's Node does not start here (Debian: apt-get install libatomic1): {}"
QUIET = ("--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")
# Disable the network: host names other than this machine's do not resolve.
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
# The only fonts that the browser finds, by pinned package and folder, so that text has the same width on every Linux
# machine. DejaVu, the widest of the common fonts, is used for every generic family.
FONTS = {"matplotlib": "mpl-data/fonts/ttf", "fontpkg_arimo": "files", "fontpkg_noto_sans": "files"}
GENERIC = {
    "sans-serif": "DejaVu Sans",
    "system-ui": "DejaVu Sans",
    "serif": "DejaVu Serif",
    "monospace": "DejaVu Sans Mono",
}
NOT_FOR_TEXT = ("cm*", "STIX*", "LastResort*")  # matplotlib's fonts for formulas
FONT_SETTINGS = Path(__file__).resolve().parents[1] / "_build" / "fonts"


def launch(playwright):
    """Start Chromium under Playwright, with the network disabled.

    Raises:
        FileNotFoundError: if there is no Chromium; the message says how to install one.
    """
    path = find_chromium()
    if path is None:
        raise FileNotFoundError(MISSING)
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    no_sandbox = ("--no-sandbox",) if is_root else ()  # Chromium's sandbox does not run as root
    arguments = ["--no-first-run", OFFLINE, *QUIET, *no_sandbox]
    return playwright.chromium.launch(executable_path=path, args=arguments, env=os.environ | pinned_fonts())


def why_no_browser() -> str:
    """Return the reason why no browser can be started, or an empty string if one can."""
    if find_chromium() is None:
        return MISSING
    from playwright._impl._driver import compute_driver_executable

    node, _ = compute_driver_executable()
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    return NO_DRIVER.format(done.stderr.strip()) if done.returncode else ""


def find_chromium() -> str | None:
    """Return the path of the browser named in CHROMIUM, or of the first that is installed, or ``None``."""
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


def pinned_fonts() -> dict[str, str]:
    """Return the environment variables with which fontconfig, on Linux, offers only the pinned fonts."""
    folders = [folder for package, within in FONTS.items() for folder in _package_folders(package, within)]
    aliases = [
        f"<alias binding='strong'><family>{generic}</family><prefer><family>{family}</family></prefer></alias>"
        for generic, family in GENERIC.items()
    ]
    rejected = "".join(f"<glob>{folder}/{name}</glob>" for folder in folders for name in NOT_FOR_TEXT)
    lines = [
        *(f"<dir>{folder}</dir>" for folder in folders),
        f"<selectfont><rejectfont>{rejected}</rejectfont></selectfont>",
        *aliases,
        f"<cachedir>{FONT_SETTINGS}/cache</cachedir>",
    ]
    text = f"<?xml version='1.0'?>\n<fontconfig>{''.join(lines)}</fontconfig>\n"
    FONT_SETTINGS.mkdir(parents=True, exist_ok=True)
    file = FONT_SETTINGS / "fonts.conf"
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        with tempfile.NamedTemporaryFile("w", dir=FONT_SETTINGS, delete=False, encoding="utf-8") as draft:
            draft.write(text)
        Path(draft.name).replace(file)  # atomic, since another process may be reading the file
    return {"FONTCONFIG_FILE": str(file)}


def _package_folders(package: str, within: str) -> list[Path]:
    """Return the folders of a package's fonts without importing it; empty if it is not installed."""
    spec = importlib.util.find_spec(package)
    return [Path(place) / within for place in spec.submodule_search_locations or ()] if spec else []


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """A context manager that serves a folder to this machine only, and gives the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever, args=(0.02,))  # seconds until it notices that it is to end
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
        """Log nothing, to keep the output of tests short."""
