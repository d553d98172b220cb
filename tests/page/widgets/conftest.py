"""Fixtures: the explorers' JavaScript as functions, and explorers on a bare page without network."""

import json
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree

import pytest
from browsing import serve
from tabs import listening

from lessons_lib.page.widgets.assemble import STATIC


@pytest.fixture(scope="session")
def javascript(browser):
    """Call an exported function: ``javascript("arithmetic", "softmax", [1.0, 2.0])``; many at once with ``.each``."""
    with Javascript.served(browser, STATIC) as called:
        yield called


@pytest.fixture
def altered(browser, tmp_path):
    """The same functions from a copy in which ``right`` is replaced by ``wrong``."""

    @contextmanager
    def alter(file, right, wrong):
        copytree(STATIC, tmp_path, dirs_exist_ok=True)
        source = (STATIC / f"{file}.js").read_text()
        assert right in source
        (tmp_path / f"{file}.js").write_text(source.replace(right, wrong))
        with Javascript.served(browser, tmp_path) as called:
            yield called

    return alter


# Playwright checks each number of a result on its own; as one text, results arrive seven times faster. JSON has no
# infinite numbers, no negative zero and no typed arrays.
TO_TEXT = """const toText = (found) => JSON.stringify(found, (_, value) => {
    if (typeof value === "number" && (!Number.isFinite(value) || Object.is(value, -0)))
      return { $number: Object.is(value, -0) ? "-0" : String(value) };
    return ArrayBuffer.isView(value) ? [...value] : value ?? null;
  });"""


def from_text(text):
    """Return the values that ``toText`` wrote."""
    return json.loads(text, object_hook=lambda found: float(found["$number"]) if "$number" in found else found)


class Javascript:
    """The exported functions of the scripts that a page was served."""

    def __init__(self, page):
        self.page = page

    @classmethod
    @contextmanager
    def served(cls, browser, folder):
        with serve(folder) as address:
            page = browser.new_page()
            page.goto(f"{address}/arithmetic.js")
            yield cls(page)
            page.close()

    def __call__(self, file, name, *arguments):
        return self.each(file, name, [arguments])[0]

    def each(self, file, name, calls):
        """The results of one function for a list of argument lists."""
        script = "const f = (await import(`./${file}`))[name]; return toText(calls.map((given) => f(...given)));"
        return self._run(script, [f"{file}.js", name, [list(call) for call in calls]])

    def of_model(self, file, name, calls):
        """The results of a function of a model's scripts for that of a file and a list of argument lists."""
        script = """
          const math = { ...(await import("./gpt.math.js")), ...(await import("./writing.math.js")) };
          const { MODEL } = await import(`./${file}`);
          const model = math.opened(MODEL);
          return toText(calls.map((given) => math[name](model, ...given)));"""
        return self._run(script, [file, name, [list(call) for call in calls]])

    def _run(self, script, arguments):
        return from_text(self.page.evaluate(f"async ([file, name, calls]) => {{ {TO_TEXT} {script} }}", arguments))


BARE = '<!doctype html><html lang="en" data-theme="{theme}"><meta charset="utf-8"><title>bare</title>'
PHONE = '<meta name="viewport" content="width=device-width"><main>{body}</main></html>'


@pytest.fixture
def show(tabs, tmp_path):
    """Open explorers on a bare page from a file, without network; the page must make no request and raise no error."""

    @contextmanager
    def opened(*explorers, theme="light", width=900, **options):
        file = tmp_path / "page.html"
        body = "\n".join(explorer.to_html() for explorer in explorers)
        file.write_text(BARE.format(theme=theme) + PHONE.format(body=body), encoding="utf-8")
        asked, errors = [], []
        own = (file.as_uri(), "blob:", "data:")
        listeners = {
            "request": lambda request: None if request.url.startswith(own) else asked.append(request.url),
            "pageerror": lambda error: errors.append(str(error)),
            "console": lambda message: errors.append(message.text) if message.type == "error" else None,
        }
        size = {"width": width, "height": 900}
        with tabs.lent(size, leave=bool(options), **options) as page, listening(page, listeners):
            page.goto(file.as_uri())
            yield page
        assert asked == []
        assert errors == []

    return opened


MOUNT = """async ([source, state]) => {
  const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  const listeners = {};
  window.heard = () => Object.values(listeners).flat();
  window.saved = 0;
  window.model = {
    get: (name) => state[name],
    set(name, value) { state[name] = value; for (const f of listeners[`change:${name}`] ?? []) f(); },
    on(event, f) { (listeners[event] ??= []).push(f); },
    off(event, f) { listeners[event] = listeners[event].filter((g) => g !== f); },
    save_changes() { window.saved += 1; },
  };
  window.leave = module.default.render({ model, el: document.querySelector("main") });
}"""


@pytest.fixture
def mount(tabs, tmp_path):
    """Render an explorer as a live notebook does; the page has ``model``, ``saved``, ``heard()`` and ``leave()``."""
    file = tmp_path / "empty.html"
    file.write_text("<!doctype html><main></main>", encoding="utf-8")
    with tabs.lent({"width": 900, "height": 900}, leave=False) as page:
        page.goto(file.as_uri())

        def mounted(explorer):
            hidden = {name: getattr(explorer, name) for name in ("_card", "_words") if explorer.has_trait(name)}
            page.evaluate(MOUNT, [explorer._esm, {**explorer._state(), **hidden}])
            return page

        yield mounted


BOOK = (Path(__file__).parents[3] / "book/_static/book.js").read_text(encoding="utf-8")


@pytest.fixture
def book(browser, tmp_path):
    """Explorers in a page of the book, opened from a file at an address; no error may be thrown there."""
    context, errors = browser.new_context(), []

    def opened(*explorers, at="", before=""):
        file = tmp_path / "page.html"
        body = "".join(explorer.to_html() for explorer in explorers)
        buttons = "".join(f'<button class="{kind}-toggle"></button>' for kind in ("primary", "secondary"))
        text = f'<!doctype html><meta charset="utf-8"><h2 id="a-heading">One</h2>{buttons}{before}{body}'
        file.write_text(f"{text}<script>{BOOK}</script>", encoding="utf-8")
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(file.as_uri() + at)
        return page

    yield opened
    context.close()
    assert errors == []
