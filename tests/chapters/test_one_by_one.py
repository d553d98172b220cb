"""Tests of book/_ext/one_by_one.py: listeners for ``DOMContentLoaded`` run in order, each in a task of its own."""

import importlib
from types import SimpleNamespace

import pytest
from built_site import ROOT

PAGE = """<!doctype html><script>{script}</script><script>
window.seen = [];
window.addEventListener("DOMContentLoaded", () => seen.push("window"));
const listen = (name, more = () => {{}}) => document.addEventListener("DOMContentLoaded", function (event) {{
  seen.push(`${{name}} ${{this === document}} ${{event.type}} ${{event.eventPhase}}`);
  more();
}});
listen("first", () => {{
  scheduler.postTask(() => seen.push("between"), {{ priority: "user-blocking" }});
  throw new Error("meant");
}});
listen("second");
document.addEventListener("DOMContentLoaded", {{ handleEvent: ({{ type }}) => seen.push(`object ${{type}}`) }});
document.addEventListener("click", () => seen.push("click"), {{ once: true }});
</script><p>Text"""


@pytest.fixture
def extension(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    return importlib.import_module("one_by_one")


@pytest.mark.browser
@pytest.mark.parametrize("has_scheduler", [True, False])
def test_listeners_run_in_order_in_tasks_of_their_own(extension, browser, tmp_path, has_scheduler):
    """A task that the first requests with a higher priority runs before the second, and its error stops no other."""
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(error.message))
    script = extension.SCRIPT if has_scheduler else extension.SCRIPT.replace("self.scheduler?.postTask", "false")
    (tmp_path / "page.html").write_text(PAGE.format(script=script), encoding="utf-8")
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_function("seen.includes('object DOMContentLoaded')")
    page.locator("p").click()
    page.locator("p").click()
    seen = page.evaluate("seen")
    if has_scheduler:
        assert seen.index("between") == 2
    seen.remove("between")
    wanted = ["window", "first true DOMContentLoaded 0", "second true DOMContentLoaded 0"]
    assert seen == [*wanted, "object DOMContentLoaded", "click"]
    assert errors == ["meant"]
    page.close()


def test_scripts_of_the_theme_wait_once(extension, tmp_path):
    app = SimpleNamespace(outdir=tmp_path, builder=SimpleNamespace(format="html"))
    folder = tmp_path / "_static/scripts"
    folder.mkdir(parents=True)
    for name, callback in extension.DEFERRED.items():
        (folder / name).write_text(f"function f({callback}){{{extension.AT_ONCE.format(callback)}}}")
    for _ in range(2):  # make page builds into an existing site
        extension.wait_for_the_page(app, None)
        for name in extension.DEFERRED:
            assert '"complete"==document.readyState?' in (folder / name).read_text()
    (folder / "bootstrap.js").write_text("another")
    with pytest.raises(ValueError, match="has the theme been updated"):
        extension.wait_for_the_page(app, None)
    extension.wait_for_the_page(app, ValueError("the build failed"))
