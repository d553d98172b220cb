"""Measure all tested properties of a page in a single visit; the tests check the measurements."""

import gzip
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from tabs import listening

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 900}
OWN_SCHEMES = ("data:", "blob:")
# Folders of similar pages, and the first of each.
ALIKE = {"book/exercises/": "/scaling.html", "book/reference/": "/attention.html", "explorers/": "/masks.html"}
NO_CHAPTERS = {"back", "exercises", "questions", "reference"}  # other folders of the book
JUDGED = ("scaling", "masks", "train-gpt")  # the chapters that axe examines in ``make test``

# Serious violations in third-party HTML, by rule and place.
BASELINE = [
    ("definition-list", "lessons_lib"),  # Sphinx renders a signature of several lines as a list in a list's term
]

# axe's run time grows faster than the size of a page, so repeated content is removed first: formulas, which belong to
# MathJax; explorers, which tests/page/widgets examines; what is in all drawings but the first, whose contrast axe does
# not judge; all code except one word of each token type; all but the first four guesses; and all but the first twelve
# plain paragraphs, table rows, entries of the reference and the index, and entries of the menu for other pages. So is
# what is hidden, which axe walks through without judging it.
ONE_OF_MANY = """() => {
  const away = [], kinds = {};
  const take = (e) => { away.push([e, e.parentNode, e.nextSibling]); e.remove(); };
  window.putBack = () => { for (const [e, parent, next] of away.reverse()) parent.insertBefore(e, next); };
  for (const e of document.querySelectorAll('div.highlight pre span[class]')) kinds[e.className] ??= e.cloneNode(true);
  document.querySelectorAll('.math, .explorer, details:not([open]) > :not(summary), [hidden]').forEach(take);
  const lists = ['dl.py, .genindextable li, .modindextable tr', '.bd-sidebar-primary li:not(.current)'];
  for (const alike of [...lists, 'section > p:not([class])', 'tbody > tr'])
    [...document.querySelectorAll(alike)].slice(12).forEach(take);
  [...document.querySelectorAll('.guess')].slice(4).forEach(take);
  for (const drawn of [...document.querySelectorAll('.drawing svg')].slice(1)) [...drawn.childNodes].forEach(take);
  const [first, ...more] = document.querySelectorAll('div.highlight');
  if (!first) return;
  const pre = first.querySelector('pre');
  [...pre.childNodes, ...more].forEach(take);
  pre.style.whiteSpace = 'normal';  // all of them together need not scroll
  pre.append('plain ', ...Object.values(kinds));
  const given = window.putBack;
  window.putBack = () => { pre.replaceChildren(); pre.style.whiteSpace = ''; given(); };
}"""
WIDER_THAN_A_PHONE = """() => {
  const broad = (e) => (e.querySelector('mjx-math')?.getBoundingClientRect().width ?? 0) > e.clientWidth + 1;
  const cut = [...document.querySelectorAll('main span.math')].filter(
    (e) => getComputedStyle(e).overflowX === 'hidden' && broad(e));
  if (cut.length) return ['cut off', ...cut.slice(0, 3).map((e) => e.querySelector('mjx-assistive-mml')?.innerText)];
  const width = document.documentElement.scrollWidth;
  if (width <= 360) return [];
  const wide = [...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > 360);
  return [`${width} px`, ...wide.slice(0, 3).map((e) => e.outerHTML.slice(0, 120))];
}"""
NAMELESS = """() => [...document.querySelectorAll('div.explorer :is(input, select, button)')].filter((c) => {
  const label = [...(c.labels ?? [])].map((one) => one.textContent).join(' ');
  return !c.closest('[aria-hidden=true]') && !(c.ariaLabel || label || c.textContent).trim();
}).map((c) => c.outerHTML)"""
OPEN_FOLDS = "document.querySelectorAll('details.fold').forEach((fold) => { fold.open = true; })"
# The colours of an explorer's text, and of the background that the theme gives to an output.
COLOURS = """() => [...document.querySelectorAll('div.explorer')].map((e) => [
  getComputedStyle(e).color, getComputedStyle(e.closest('.output') ?? e).backgroundColor])"""
# book/_ext/one_by_one.py: the page's scripts may start after ``load``; until then no key and no button has a listener.
STARTED = "!Object.hasOwn(document, 'addEventListener')"
TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
# Finish animations immediately; the hint beside a curve to draw takes five seconds.
FADED = "document.getAnimations().forEach((animation) => animation.finish())"


@dataclass
class Seen:
    """The faults of a page: external, failed and pending requests, and errors; all empty for a page without faults."""

    external: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)

    def listeners(self, allowed: str) -> dict[str, Callable]:
        """Return what records a page's requests and errors; an address without ``allowed`` before it is external.

        A request that the page before has begun in the same tab does not count.
        """
        own = set()

        def asked(request) -> None:
            own.add(request)
            self.unanswered.append(request.url)
            if not request.url.startswith((allowed, *OWN_SCHEMES)):
                self.external.append(request.url)

        def answered(request) -> None:
            if request in own and request.url in self.unanswered:
                self.unanswered.remove(request.url)

        def failed(request) -> None:
            answered(request)
            if request in own:
                self.failed.append(request.url)

        def responded(response) -> None:
            if response.status >= 400:
                self.failed.append(f"{response.status} {response.url}")

        def said(message) -> None:
            if message.type == "error":
                self.errors.append(message.text)

        return {
            "request": asked,
            "response": responded,
            "requestfinished": answered,
            "requestfailed": failed,
            "pageerror": lambda error: self.errors.append(str(error)),
            "console": said,
        }

    def watch(self, page, allowed: str) -> AbstractContextManager[None]:
        """Record what the ``listeners`` hear, until the context ends."""
        return listening(page, self.listeners(allowed))

    def rest(self, page) -> "Seen":
        """Wait until there are no pending requests, since lazy images are requested after scrolling."""
        until = time.monotonic() + 600
        while self.unanswered and time.monotonic() < until:
            page.wait_for_timeout(10)
        return self


@dataclass
class Measured:
    """The measurements of one visit."""

    seen: Seen
    weights: dict[str, int]  # compressed size of each requested file
    too_wide: list[str]  # elements that do not fit a phone
    nameless: list[str]  # controls of explorers without an accessible name
    colours: dict[str, list[tuple[str, str]]]  # text and background colour of each explorer, by theme
    violations: dict[str, list[str]] | None  # serious accessibility violations, by theme, where axe has examined it


def each_of(pages, later: Callable[[str], bool] | None = None):
    """Parametrise over pages; of pages that are alike (``ALIKE``), ``make test`` visits one, and none of ``later``.

    All tests of a page share one visit, so ``--dist loadgroup`` keeps them in one process.
    """
    return pytest.mark.parametrize(
        "path", [pytest.param(page, marks=marks_of(page, later is not None and later(page))) for page in pages]
    )


def marks_of(page: str, is_later: bool = False) -> list[pytest.MarkDecorator]:
    repeats = any(page.startswith(folder) and not page.endswith(first) for folder, first in ALIKE.items())
    return [pytest.mark.xdist_group(page), *([pytest.mark.thorough] if repeats or is_later else [])]


def is_examined_later(page: str) -> bool:
    """Return whether axe examines a page in ``make test-all`` alone, as most chapters: they have the same parts."""
    path = Path(page)
    return path.match("book/*/*.html") and path.parent.name not in NO_CHAPTERS and path.stem not in JUDGED


def open_and_settle(page, seen: Seen, address: str, *, with_scripts: bool = True) -> None:
    """Open a page and wait until it is loaded, typeset and drawn, with all fonts, and has no pending requests.

    Playwright's ``networkidle`` would wait for half a second without requests. This function returns at the last
    response; later requests are still recorded, since ``seen`` listens until the visit is over.
    """
    page.goto(address)
    if with_scripts:
        page.wait_for_function("!document.querySelector('meta[http-equiv=refresh]')")  # a page that redirects
        page.wait_for_load_state("load")
        page.wait_for_function(STARTED)
        page.evaluate("window.MathJax?.startup?.promise")
        page.evaluate("document.fonts.ready")
        page.evaluate(TWO_FRAMES)
    seen.rest(page)


def measure(context, folder: Path, base: str, path: str) -> Measured:
    """Open the page of ``folder``, served at ``base``, in a tab of its own and measure it.

    In a tab that has shown another page, that page's fonts would seem to be asked for.

    The phone comes last, because the theme looks again, a moment after a change of size, for what can be scrolled.
    """
    page = context.new_page()
    seen, asked = Seen(), set()
    with seen.watch(page, base), listening(page, {"response": lambda one: asked.add(one.url) if one.ok else None}):
        open_and_settle(page, seen, f"{base}/{path}")

        weights = {url: compressed(folder / inside) for url in asked if (inside := _inside(url, base)) is not None}
        nameless = page.evaluate(NAMELESS)
        colours = {"light": page.evaluate(COLOURS)}
        set_theme(page, "dark")
        colours["dark"] = page.evaluate(COLOURS)  # measured immediately after the change
        set_theme(page, "light")
        violations = None if is_examined_later(path) else examine(page)

        page.set_viewport_size(PHONE)
        page.evaluate(TWO_FRAMES)
        too_wide = page.evaluate(WIDER_THAN_A_PHONE)
        seen.rest(page)  # a font that only the phone needs
    page.close()
    return Measured(seen, weights, too_wide, nameless, colours, violations)


def examine(page) -> dict[str, list[str]]:
    """Return the serious violations that axe finds on a page, by theme, and leave the page as it was."""
    page.evaluate(ONE_OF_MANY)
    page.evaluate(FADED)
    violations = {"light": serious_violations(page)}
    set_theme(page, "dark")
    page.evaluate(FADED)
    violations["dark"] = serious_violations(page, runOnly=["color-contrast"])
    page.evaluate("putBack()")
    return violations


@dataclass
class WithoutScripts:
    """What a reader without JavaScript sees of a page."""

    guessing: int  # controls of guesses
    opened: int  # folds that are open after a click on the first
    explorers: list[tuple[bool, str]]  # of each, whether its figure is visible, and its text


def look_without_scripts(page, address: str) -> WithoutScripts:
    """Open the page at an address in a tab without JavaScript, and its folds that hold explorers by a click."""
    page.goto(address)
    guessing = page.locator(".g-mode:visible, .g-bar").count()
    folds = page.locator("details.fold > summary")
    if folds.count():
        folds.first.click()
    opened = page.locator("details.fold[open]").count()
    for fold in page.locator("details.fold:not([open]):has(div.explorer) > summary").all()[::-1]:
        fold.click()
    explorers = page.locator("div.explorer").all()
    return WithoutScripts(
        guessing, opened, [(one.locator("svg[role=img]").first.is_visible(), one.inner_text()) for one in explorers]
    )


def set_theme(page, theme: str) -> None:
    page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)


@cache
def compressed(file: Path) -> int:
    """Return the size of the compressed file in bytes."""
    return len(gzip.compress(file.read_bytes()))


def _inside(url: str, base: str) -> str | None:
    """Return the path in the site of an address, or ``None`` for an external address."""
    return unquote(urlsplit(url).path).lstrip("/") if url.startswith(f"{base}/") else None


def known(rule: str, node: dict) -> bool:
    place = f"{node['target'][0]} {node['html']}"
    return any(rule == listed and part in place for listed, part in BASELINE)


def serious_violations(page, **options) -> list[str]:
    """Return axe's serious and critical violations, with rule, place and source."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    asked = {"resultTypes": ["violations"], "preload": False, **options}
    found = page.evaluate("async (options) => (await axe.run(options)).violations", asked)
    return [
        f"{violation['id']} at {node['target'][0]}: {node['html'][:120]}"
        for violation in found
        if violation["impact"] in {"serious", "critical"}
        for node in violation["nodes"]
        if not known(violation["id"], node)
    ]
