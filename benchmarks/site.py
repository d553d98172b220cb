"""Measure what a page of the built site weighs, how soon its explorers are live, and the longest task of its loading.

The weight is compressed. Tasks are measured with the processor slowed down four times.

Run by ``make bench``; writes ``benchmarks/results/site.json``. Pages given as arguments, such as
``book/attention/masks.html``, are measured and printed only.
"""

import datetime
import gzip
import json
import platform
import statistics
import sys
from importlib.metadata import version
from pathlib import Path

from browsing import launch, serve
from playwright.sync_api import Browser, Page, Request, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "_build" / "html"
RUNS = 3
LEFT_OUT = {"exercises", "questions"}  # folders: of pages that are alike, and of pages that redirect
# An explorer is live once its own code has replaced the fallback by controls; one with a trained model may still wait.
LIVE = """() => [...document.querySelectorAll('div.explorer')].every(
  (e) => e.querySelector('input, select, button, script[data-later]'))"""
# On the first page: from a click on a head to the sentence that says what its removal changes.
CLICK = """async () => {
  const told = document.querySelector(".h-told"), start = performance.now();
  document.querySelector(".h-cut").click();
  while (!told.textContent.startsWith("Without")) await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""

THROTTLING = 4
LONG_TASKS = """window.longest = 0;
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({ type: "longtask", buffered: true });"""


def watch(page: Page) -> set[Request]:
    """Return the page's pending requests, a set that changes with them."""
    pending: set[Request] = set()
    page.on("request", lambda request: pending.add(request))
    page.on("requestfinished", lambda request: pending.discard(request))
    page.on("requestfailed", lambda request: pending.discard(request))
    return pending


def settle(page: Page, pending: set[Request]) -> None:
    """Wait for half a second without requests; Playwright's ``networkidle`` does not come on every page."""
    page.wait_for_load_state("load")
    quiet = 0
    while quiet < 5:
        page.wait_for_timeout(100)
        quiet = 0 if pending else quiet + 1


def longest_task(browser: Browser, address: str) -> float:
    """Return the milliseconds of the longest task while a page loads with the processor slowed down."""
    context = browser.new_context()
    page = context.new_page()
    pending = watch(page)
    page.add_init_script(LONG_TASKS)
    context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": THROTTLING})
    page.goto(address, wait_until="commit")
    page.wait_for_function(LIVE, polling="raf")
    settle(page, pending)
    longest = page.evaluate("window.longest")
    context.close()
    return longest


def measure(browser: Browser, address: str) -> dict[str, float]:
    """Load a page with an empty cache several times; return kilobytes and milliseconds."""
    live, clicks, weight = [], [], 0
    for _ in range(RUNS):
        context = browser.new_context()
        page = context.new_page()
        responses, pending = [], watch(page)
        page.on("response", lambda response, seen=responses: seen.append(response))
        page.goto(address, wait_until="commit")
        page.wait_for_function(LIVE, polling="raf")
        live.append(page.evaluate("performance.now()"))
        settle(page, pending)
        weight = sum(len(gzip.compress(response.body())) for response in responses if response.ok)
        if page.locator(".h-cut").count():
            clicks.append(page.evaluate(CLICK))
        context.close()
    found = {"compressed_kB": round(weight / 1000, 1), "live_ms_median": round(statistics.median(live)), "runs": RUNS}
    throttled = [longest_task(browser, address) for _ in range(RUNS)]
    found["longest_task_ms_median_throttled"] = round(statistics.median(throttled))
    return found | ({"click_ms_median": round(statistics.median(clicks))} if clicks else {})


def main(chosen: list[str]) -> None:
    """Measure every page of the book and write the results, or print those of the chosen pages."""
    pages = chosen or [
        str(page.relative_to(HTML)) for page in sorted(HTML.glob("book/**/*.html")) if not LEFT_OUT & {*page.parts}
    ]
    with sync_playwright() as playwright, serve(HTML) as address:
        browser = launch(playwright)
        results = {page: measure(browser, f"{address}/{page}") for page in pages}
        chromium = browser.version
        browser.close()
    report = {
        "command": "make bench",
        "date": datetime.date.today().isoformat(),
        "device": f"{platform.machine()}, {platform.system()}",
        "throttling": THROTTLING,
        "versions": {"chromium": chromium, "jupyter-book": version("jupyter-book"), "anywidget": version("anywidget")},
        "pages": results,
    }
    if not chosen:
        target = ROOT / "benchmarks" / "results" / "site.json"
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(report, indent=2) + "\n")
    for page, row in results.items():
        print(
            f"{page:45} {row['compressed_kB']:8.1f} kB   live after {row['live_ms_median']:5.0f} ms"
            f"   longest task {row['longest_task_ms_median_throttled']:5.0f} ms"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
