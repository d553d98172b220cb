"""Firefox without a window, spoken to in WebDriver BiDi [1]_: as much of it as a reader's hand does to a page.

Playwright drives a Firefox of its own, which is not the reader's, and of the one that Debian installs it asks commands
that this does not know. So this is a small client: one connection, one answer after another, no threads. Whatever
takes time is waited for by asking the page until it says so.

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
SECONDS = 180  # that anything may take, on a machine that has other things to do
PATIENCE = 5  # seconds after which a hand that had no effect tries again: a busy machine drops a touch
# The network is off, this machine apart; nothing is looked up, reported or offered; a finger is one on any machine.
# A tap is one however long the machine takes over it.
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
LEFT_BEHIND = "NS_BINDING_ABORTED"  # what a page had asked for when the next was opened
STEPS = 10  # of a finger on its way
# Where the middle of an element is in the window, once it is in sight, nothing covers it, and it rested for ten frames.
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
    """Return the path of the browser that FIREFOX names, or of Debian's. (Ubuntu's may not read a profile in /tmp.)"""
    return shutil.which(os.environ.get("FIREFOX", "firefox-esr"))


@dataclass
class Firefox:
    """The one tab of a browser; ``errors`` is what pages complained about, ``asked`` the addresses they asked for."""

    socket: websocket.WebSocket
    tab: str = ""
    errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    _last: int = 0

    def send(self, method: str, **parameters):
        """Send a command and return its result; what happens meanwhile is noted."""
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
        """Open a page and wait until it is loaded and its formulas are set."""
        self.send("browsingContext.navigate", context=self.tab, url=address, wait="complete")
        self.run("async () => { await window.MathJax?.startup?.promise; await document.fonts.ready; }")

    def run(self, function: str):
        """Call a function of the page, wait for it if it promises something, and return its result."""
        source = f"async () => JSON.stringify((await ({function})()) ?? null)"
        target = {"context": self.tab}
        done = self.send("script.callFunction", functionDeclaration=source, target=target, awaitPromise=True)
        if done["type"] == "exception":
            raise RuntimeError(done["exceptionDetails"]["text"])
        return json.loads(done["result"]["value"])

    def wait_for(self, expression: str, seconds: float = SECONDS) -> None:
        """Ask until the expression is something."""
        until = time.monotonic() + seconds
        while not self.run(f"() => Boolean({expression})"):
            if time.monotonic() > until:
                raise TimeoutError(f"after {seconds} s still not: {expression}")
            time.sleep(0.05)

    def until(self, expression: str, act: Callable[[], None]) -> None:
        """Act, and if that had no effect act again, until the expression is something."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            act()
            with suppress(TimeoutError):
                return self.wait_for(expression, PATIENCE)
        raise TimeoutError(f"after {SECONDS} s of trying still not: {expression}")

    def hear_of(self, *faults: str) -> None:
        """Listen until all these have been complained about."""
        until = time.monotonic() + SECONDS
        while missing := [fault for fault in faults if not any(fault in error for error in self.errors)]:
            if time.monotonic() > until:
                raise TimeoutError(f"after {SECONDS} s nothing of {missing} in {self.errors}")
            self.run("() => null")
            time.sleep(0.05)

    def middle(self, selector: str) -> tuple[float, float]:
        """Bring the first visible element into sight, wait until it rests, and return where its middle is."""
        place = self.run(MIDDLE % (1000 * SECONDS // 2, json.dumps(selector)))
        if place is None:
            raise TimeoutError(f"nothing that rests in sight after {SECONDS // 2} s: {selector}")
        return tuple(place)

    def touch(self, *places: tuple[float, float], kind: str = "touch") -> None:
        """Put a finger, or a mouse, on the page, move it along the places, and lift it."""
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
        """Tap the middle of the first visible element."""
        self.touch(self.middle(selector), kind=kind)

    def drag(self, selector: str, *by: tuple[float, float], kind: str = "touch") -> None:
        """Put a finger on the first visible element and move it along places given from the element's middle."""
        x, y = self.middle(selector)
        self.touch(*((x + dx, y + dy) for dx, dy in by), kind=kind)


@contextmanager
def firefox() -> Iterator[Firefox]:
    """Start the browser for the length of a ``with``, in a profile that is thrown away after it."""
    path = find_firefox()
    if path is None:
        raise FileNotFoundError(MISSING)
    with TemporaryDirectory(prefix="firefox", ignore_cleanup_errors=True) as folder:
        lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in PREFERENCES.items()]
        Path(folder, "user.js").write_text("\n".join(lines))
        command = [path, "--headless", "--no-remote", "--profile", folder, "--remote-debugging-port=0", "about:blank"]
        environment = {**os.environ, "HOME": folder, "MOZ_CRASHREPORTER_DISABLE": "1"}  # to root, HOME must be its own
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            address = listening(process, folder)
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


def listening(process: subprocess.Popen, folder: str) -> str:
    """Wait for the file in which Firefox says where it listens, and return the address."""
    until, file = time.monotonic() + SECONDS, Path(folder, "WebDriverBiDiServer.json")
    while process.poll() is None and time.monotonic() < until:
        try:
            said = json.loads(file.read_text())
            return f"ws://{said['ws_host']}:{said['ws_port']}/session"
        except (FileNotFoundError, json.JSONDecodeError):  # not yet, or half written
            time.sleep(0.05)
    raise TimeoutError(f"Firefox listened nowhere within {SECONDS} s (exit status {process.poll()})")
