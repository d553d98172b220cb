"""A small client that controls a headless Firefox by WebDriver BiDi [1]_: visits, clicks, touches and drags.

Playwright needs its own build of Firefox and does not work with Debian's. This client has one connection, sends one
command at a time, and uses no threads. It waits for conditions by evaluating them repeatedly in the page.

.. [1] W3C, *WebDriver BiDi*. https://www.w3.org/TR/webdriver-bidi/.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import websocket

MISSING = "no Firefox here: install one (Debian: apt-get install firefox-esr) or name it in FIREFOX"
SECONDS = 180  # limit for any step, on a busy machine
PATIENCE = 5  # seconds after which an action without effect is repeated: a busy machine may drop a touch
# Disable the network except this machine, updates, reports and offers; enable touch events. The long delays ensure that
# a slow tap still counts as a tap.
PREFERENCES = {
    "apz.max_tap_time": 60_000,
    "ui.click_hold_context_menus.delay": 60_000,
    "app.normandy.enabled": False,
    "app.update.disabledForTesting": True,
    "browser.aboutwelcome.enabled": False,
    "browser.safebrowsing.downloads.remote.enabled": False,
    "browser.safebrowsing.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage_override.mstone": "ignore",
    "browser.startup.page": 0,
    "datareporting.policy.dataSubmissionEnabled": False,
    "dom.w3c_touch_events.enabled": 1,
    "extensions.update.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "network.proxy.type": 1,
    "network.proxy.http": "127.0.0.1",
    "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.ssl_port": 9,
    "network.proxy.no_proxies_on": "127.0.0.1",
    "services.settings.server": "data:,",
    "toolkit.telemetry.enabled": False,
    "ui.systemUsesDarkTheme": 0,
}
LEFT_BEHIND = "NS_BINDING_ABORTED"  # a request that was cancelled because the next page was opened
STEPS = 10  # of a pointer's movement
# Return the centre of an element in the window, once it is visible, uncovered, and has not moved for ten frames.
MIDDLE = """async () => {
  const frame = () => new Promise(requestAnimationFrame);
  const until = performance.now() + %d;
  for (let rested = 0, at = ""; performance.now() < until; await frame()) {
    const found = [...document.querySelectorAll(%s)].find((e) => e.checkVisibility());
    if (!found) continue;
    if (!rested) found.scrollIntoView({ block: "center", behavior: "instant" });
    const { x, y, width, height } = found.getBoundingClientRect();
    const middle = [x + width / 2, y + height / 2];
    const top = document.elementFromPoint(...middle);
    rested = `${middle}` === at && (found.contains(top) || top?.contains(found)) ? rested + 1 : 0;
    at = `${middle}`;
    if (rested === 10) return middle;
  }
  return null;
}"""


def find_firefox() -> str | None:
    """Return the path of the browser named in FIREFOX, or of Debian's. (Ubuntu's cannot read a profile in /tmp.)"""
    return shutil.which(os.environ.get("FIREFOX", "firefox-esr"))


@dataclass
class Firefox:
    """A browser with one tab; ``errors`` are the pages' errors, ``asked`` the addresses that they requested."""

    socket: websocket.WebSocket
    tab: str = ""
    errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    _last: int = 0

    def send(self, method: str, **parameters):
        """Send a command and return its result; record the events that arrive in the meantime."""
        self._last += 1
        self.socket.send(json.dumps({"id": self._last, "method": method, "params": parameters}))
        while True:
            said = json.loads(self.socket.recv())
            if said.get("id") == self._last:
                if said["type"] == "error":
                    raise RuntimeError(f"{method}: {said['error']}: {said['message']}")
                return said["result"]
            self._note(said)

    def _note(self, said: dict) -> None:
        if said.get("method") == "network.beforeRequestSent":
            self.asked.append(said["params"]["request"]["url"])
        elif said.get("method") == "network.fetchError" and said["params"]["errorText"] != LEFT_BEHIND:
            self.errors.append(f"{said['params']['errorText']} {said['params']['request']['url']}")
        elif said.get("method") == "network.responseCompleted" and said["params"]["response"]["status"] >= 400:
            self.errors.append(f"{said['params']['response']['status']} {said['params']['request']['url']}")
        elif said.get("method") == "log.entryAdded" and said["params"]["level"] == "error":
            self.errors.append(said["params"]["text"])

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page."""
        self.send("browsingContext.setViewport", context=self.tab, viewport={"width": width, "height": height})

    def visit(self, address: str) -> None:
        """Open a page and wait until it is loaded and its formulas are typeset."""
        self.send("browsingContext.navigate", context=self.tab, url=address, wait="complete")
        self.run("async () => { await window.MathJax?.startup?.promise; await document.fonts.ready; }")

    def run(self, function: str):
        """Call a JavaScript function in the page, await its promise, and return its result."""
        source = f"async () => JSON.stringify((await ({function})()) ?? null)"
        target = {"context": self.tab}
        done = self.send("script.callFunction", functionDeclaration=source, target=target, awaitPromise=True)
        if done["type"] == "exception":
            raise RuntimeError(done["exceptionDetails"]["text"])
        return json.loads(done["result"]["value"])

    def wait_for(self, expression: str, seconds: float = SECONDS) -> None:
        """Evaluate an expression until it is truthy."""
        until = time.monotonic() + seconds
        while not self.run(f"() => Boolean({expression})"):
            if time.monotonic() > until:
                raise TimeoutError(f"the expression is still false after {seconds} s: {expression}")
            time.sleep(0.05)

    def until(self, expression: str, act: Callable[[], None]) -> None:
        """Repeat an action until an expression is truthy."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            act()
            with suppress(TimeoutError):
                return self.wait_for(expression, PATIENCE)
        raise TimeoutError(f"the expression is still false after {SECONDS} s of trying: {expression}")

    def wait_for_errors(self, *faults: str) -> None:
        """Wait until all of these errors have been recorded."""
        until = time.monotonic() + SECONDS
        while missing := [fault for fault in faults if not any(fault in error for error in self.errors)]:
            if time.monotonic() > until:
                raise TimeoutError(f"{missing} must be in the errors, but after {SECONDS} s these are {self.errors}")
            self.run("() => null")
            time.sleep(0.05)

    def middle(self, selector: str) -> tuple[float, float]:
        """Scroll to the first visible match, wait until it does not move, and return its centre."""
        place = self.run(MIDDLE % (1000 * SECONDS // 2, json.dumps(selector)))
        if place is None:
            raise TimeoutError(f"no visible element at rest after {SECONDS // 2} s: {selector}")
        return tuple(place)

    def touch(self, *places: tuple[float, float], kind: str = "touch") -> None:
        """Press a finger or the mouse button, move along the places, and release."""
        (x, y), *rest = [(round(x), round(y)) for x, y in places]
        actions = [{"type": "pointerMove", "x": x, "y": y}, {"type": "pointerDown", "button": 0}]
        for x1, y1 in rest:
            for i in range(1, STEPS + 1):
                to = {"x": round(x + (x1 - x) * i / STEPS), "y": round(y + (y1 - y) * i / STEPS)}
                actions.append({"type": "pointerMove", **to, "duration": 16})
            x, y = x1, y1
        actions.append({"type": "pointerUp", "button": 0})
        source = {"type": "pointer", "id": kind, "parameters": {"pointerType": kind}, "actions": actions}
        self.send("input.performActions", context=self.tab, actions=[source])
        self.send("input.releaseActions", context=self.tab)

    def tap(self, selector: str, kind: str = "touch") -> None:
        """Tap the centre of the first visible match."""
        self.touch(self.middle(selector), kind=kind)

    def drag(self, selector: str, *by: tuple[float, float], kind: str = "touch") -> None:
        """Drag from the first visible match along places given relative to its centre."""
        x, y = self.middle(selector)
        self.touch(*((x + dx, y + dy) for dx, dy in by), kind=kind)


@contextmanager
def firefox() -> Iterator[Firefox]:
    """A context manager that starts the browser with a temporary profile."""
    path = find_firefox()
    if path is None:
        raise FileNotFoundError(MISSING)
    with TemporaryDirectory(prefix="firefox", ignore_cleanup_errors=True) as folder:
        lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in PREFERENCES.items()]
        Path(folder, "user.js").write_text("\n".join(lines))
        command = [path, "--headless", "--no-remote", "--profile", folder, "--remote-debugging-port=0", "about:blank"]
        environment = {
            **os.environ,
            "HOME": folder,
            "MOZ_CRASHREPORTER_DISABLE": "1",
        }  # for root, HOME must belong to root
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            address = server_address(process, folder)
            with closing(websocket.create_connection(address, timeout=SECONDS, suppress_origin=True)) as socket:
                browser = Firefox(socket)
                browser.send("session.new", capabilities={})
                browser.tab = browser.send("browsingContext.getTree")["contexts"][0]["context"]
                events = ("beforeRequestSent", "fetchError", "responseCompleted")
                browser.send("session.subscribe", events=["log.entryAdded", *(f"network.{name}" for name in events)])
                yield browser
        finally:
            process.terminate()
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def server_address(process: subprocess.Popen, folder: str) -> str:
    """Wait for the file with the address of Firefox's server, and return the address."""
    until, file = time.monotonic() + SECONDS, Path(folder, "WebDriverBiDiServer.json")
    while process.poll() is None and time.monotonic() < until:
        try:
            said = json.loads(file.read_text())
            return f"ws://{said['ws_host']}:{said['ws_port']}/session"
        except (FileNotFoundError, json.JSONDecodeError):  # not yet written, or incomplete
            time.sleep(0.05)
    raise TimeoutError(f"Firefox must start its server, but has not in {SECONDS} s (exit status {process.poll()})")
