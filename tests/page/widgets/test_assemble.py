"""Tests of the bundling of scripts: both forms run, and files that cannot be bundled raise an error."""

import json

import pytest

from lessons_lib.page.widgets import assemble


@pytest.fixture
def static(tmp_path, monkeypatch):
    """A folder with a short page_model.js and kit.js."""
    monkeypatch.setattr(assemble, "STATIC", tmp_path)
    (tmp_path / "page_model.js").write_text(
        "export function mount(explorer, state) { window.seen = [explorer.render(), state]; }"
    )
    (tmp_path / "kit.js").write_text("const hidden = 2;\nexport function twice(x) {\n  return hidden * x;\n}\n")
    return tmp_path


GOOD = 'import { twice } from "./kit.js";\nexport const hidden = 21;\nexport default { render: () => twice(hidden) };\n'


@pytest.mark.browser
def test_both_forms_run_and_private_names_do_not_collide(static, browser):
    (static / "good.js").write_text(GOOD)
    page = browser.new_page()
    page.evaluate(assemble.classic_script("good", {"a": 1}))
    assert page.evaluate("window.seen") == [42, {"a": 1}]
    load = "async (text) => (await import(`data:text/javascript,${encodeURIComponent(text)}`)).default.render()"
    assert page.evaluate(load, assemble.es_module("good")) == 42
    page.close()


@pytest.mark.browser
@pytest.mark.parametrize("text", ["</script><b>", "<!--<script>", "\u2028", "'\"`${x}\\", "ключ"])
def test_page_scripts_no_text_in_the_state_ends_the_script(static, browser, text):
    (static / "good.js").write_text(GOOD)
    script = assemble.classic_script("good", {"labels": [text]})
    assert "<" not in script[script.rindex("mount(explorer") :]
    page = browser.new_page()
    page.set_content(f"<!doctype html><main><script>{script}</script></main>")
    assert page.evaluate("window.seen[1].labels") == [text]
    page.close()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_page_scripts_infinite_number_in_the_state_raises(static, value):
    (static / "good.js").write_text(GOOD)
    with pytest.raises(ValueError, match="not JSON compliant"):
        assemble.classic_script("good", {"a": value})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda s: s + "// </script>", "</script would end"),
        (lambda s: s + "const x = '<!--';", "<!-- would end"),
        (lambda s: s + "export default { render };\n", "exactly one"),
        (lambda s: s.replace("export default", "export const other ="), "exactly one"),
        (lambda s: s.replace("export default {", "export default Object({"), "exactly one"),
        (lambda s: 'import d3 from "./kit.js";\n' + s, "imports more"),
        (lambda s: 'import { x } from "https://elsewhere.org/kit.js";\n' + s, "imports more"),
        (lambda s: 'import "./kit.js";\n' + s, "imports more"),
        (lambda s: s + 'const later = () => import("./kit.js");\n', "imports kit.js at once and later"),
        (lambda s: s + 'const later = () => import("https://elsewhere.org/kit.js");\n', "imports more"),
        (lambda s: s + "const later = (file) => import(`./${file}.js`);\n", "imports more"),
        (lambda s: s + "export { hidden as shown };\n", "exports in a form"),
        (lambda s: s + "export async function f() {}\n", "exports in a form"),
    ],
    ids=range(13),
)
def test_page_scripts_files_that_cannot_be_bundled_raise(static, change, complaint):
    (static / "bad.js").write_text(change(GOOD))
    with pytest.raises(AssertionError, match=complaint):
        assemble.classic_script("bad", {})


@pytest.mark.parametrize("line", ['import { a } from "./b.js";\n', "export default 1;\n", "export { hidden };\n"])
def test_es_module_imported_file_with_other_imports_or_exports_raises(static, line):
    (static / "good.js").write_text(GOOD)
    kit = static / "kit.js"
    kit.write_text(line + kit.read_text())
    with pytest.raises(AssertionError, match=r"kit\.js"):
        assemble.es_module("good")


def test_comments_and_types_that_name_imports_are_left_alone(static):
    typed = '/** @typedef {import("./kit.js").Value} Value */\n// import nothing here\n'
    (static / "good.js").write_text(typed + GOOD)
    assert typed in assemble.es_module("good")
    assert typed in assemble.classic_script("good", {})


@pytest.mark.browser
def test_file_imported_twice_is_bundled_once_before_its_importers(static, browser):
    """``good`` needs ``twice`` of ``kit``, and of ``good.math`` what needs ``kit`` again."""
    (static / "good.math.js").write_text(
        'import {\n  twice,\n} from "./kit.js";\nexport function four(x) {\n  return twice(twice(x));\n}\n'
    )
    (static / "good.js").write_text(
        'import { four } from "./good.math.js";\nimport { twice } from "./kit.js";\n'
        "export default { render: () => [twice(5), four(5)] };\n"
    )
    assert assemble.es_module("good").count("const hidden") == 1
    page = browser.new_page()
    page.evaluate(assemble.classic_script("good", {}))
    assert page.evaluate("window.seen[0]") == [10, 20]
    page.close()


@pytest.mark.browser
def test_dynamic_import_is_a_promise_in_both_forms(static, browser):
    """On a page the file is a part of its own, which a book may fetch by its key when it is needed."""
    (static / "data.js").write_text("export const MODEL = { size: 7 };\n")
    late = 'const later = async () => twice((await import("./data.js")).MODEL.size);\n'
    (static / "good.js").write_text(
        f'import {{ twice }} from "./kit.js";\n{late}export default {{ render: () => later() }};\n'
    )
    page = browser.new_page()
    load = "async (text) => (await import(`data:text/javascript,${encodeURIComponent(text)}`)).default.render()"
    assert page.evaluate(load, assemble.es_module("good")) == 14
    page.evaluate(assemble.classic_script("good", {}))
    assert page.evaluate("window.seen[0]") == 14
    scripts, own = assemble.page_scripts("good", {})
    (key,) = [key for key in scripts if key.startswith("data-")]
    page.evaluate("window.xLater = async (...keys) => (window.asked = keys, { MODEL: { size: 4 } })")
    page.evaluate("\n".join([*(script for part, script in scripts.items() if part != key), own]))
    assert page.evaluate("window.seen[0]") == 8
    assert page.evaluate("window.asked") == [key]
    page.close()


def test_dynamically_imported_file_with_imports_raises(static):
    (static / "data.js").write_text('import { twice } from "./kit.js";\nexport const size = twice(2);\n')
    (static / "good.js").write_text(
        'const later = () => import("./data.js");\nexport default { render: () => later() };\n'
    )
    with pytest.raises(AssertionError, match=r"data\.js: comes later and imports nothing"):
        assemble.es_module("good")


def test_name_that_shadows_an_imported_file_raises(static):
    (static / "good.js").write_text(GOOD + "function kit_js() {}\n")
    with pytest.raises(AssertionError, match=r"kit\.js: the importing file uses kit_js"):
        assemble.es_module("good")


def test_files_that_import_each_other_raise(static):
    (static / "good.js").write_text(GOOD)
    (static / "kit.js").write_text('import { a } from "./b.js";\nexport const twice = a;\n')
    (static / "b.js").write_text('import { twice } from "./kit.js";\nexport const a = twice;\n')
    with pytest.raises(AssertionError, match=r"kit\.js: imports itself, by way of b"):
        assemble.es_module("good")


def test_page_scripts_pass_the_state_as_json(static):
    (static / "good.js").write_text(GOOD)
    script = assemble.classic_script("good", {"b": [1.5, None, True], "a": "<"})
    start = script[script.rindex("mount(explorer, ") + len("mount(explorer, ") : script.rindex(");\n})();")]
    assert json.loads(start) == {"b": [1.5, None, True], "a": "<"}


def test_key_of_a_script_changes_with_its_text(static):
    (static / "good.js").write_text(GOOD)
    before, own = assemble.page_scripts("good", {})
    kit = static / "kit.js"
    kit.write_text(kit.read_text().replace("hidden = 2", "hidden = 3"))
    after, _ = assemble.page_scripts("good", {})
    assert [key.split("-")[0] for key in before] == ["kit", "page_model"]
    assert len(before.keys() & after.keys()) == 1  # of the host, which is the same
    assert all(key in own for key in before)
