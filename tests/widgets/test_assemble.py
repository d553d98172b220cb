"""Two forms of one script: what comes out runs, and what could not be put together is refused."""

import json

import pytest

from lessons_lib.widgets import assemble


@pytest.fixture
def static(tmp_path, monkeypatch):
    """A folder of scripts of our own, with the true host and kit."""
    monkeypatch.setattr(assemble, "STATIC", tmp_path)
    (tmp_path / "host.js").write_text("function host(explorer, state) { window.seen = [explorer.render(), state]; }")
    (tmp_path / "kit.js").write_text("const hidden = 2;\nexport function twice(x) {\n  return hidden * x;\n}\n")
    return tmp_path


GOOD = 'import { twice } from "./kit.js";\nexport const hidden = 21;\nexport default { render: () => twice(hidden) };\n'


@pytest.mark.browser
def test_both_forms_run_and_private_names_stay_apart(static, browser):
    (static / "good.js").write_text(GOOD)
    page = browser.new_page()
    page.evaluate(assemble.classic_script("good", {"a": 1}))
    assert page.evaluate("window.seen") == [42, {"a": 1}]
    load = "async (text) => (await import(`data:text/javascript,${encodeURIComponent(text)}`)).default.render()"
    assert page.evaluate(load, assemble.es_module("good")) == 42
    page.close()


@pytest.mark.browser
@pytest.mark.parametrize("text", ["</script><b>", "<!--<script>", "\u2028", "'\"`${x}\\", "ключ"])
def test_no_text_in_the_state_breaks_out_of_the_script(static, browser, text):
    (static / "good.js").write_text(GOOD)
    script = assemble.classic_script("good", {"labels": [text]})
    assert "<" not in script[script.rindex("host(explorer") :]
    page = browser.new_page()
    page.set_content(f"<!doctype html><main><script>{script}</script></main>")
    assert page.evaluate("window.seen[1].labels") == [text]
    page.close()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_cannot_say_is_refused(static, value):
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
def test_what_cannot_be_put_together_is_refused(static, change, complaint):
    (static / "bad.js").write_text(change(GOOD))
    with pytest.raises(AssertionError, match=complaint):
        assemble.classic_script("bad", {})


@pytest.mark.parametrize("line", ['import { a } from "./b.js";\n', "export default 1;\n", "export { hidden };\n"])
def test_a_shared_file_imports_what_is_there_and_exports_plain_names(static, line):
    (static / "good.js").write_text(GOOD)
    kit = static / "kit.js"
    kit.write_text(line + kit.read_text())
    with pytest.raises(AssertionError, match=r"kit\.js"):
        assemble.es_module("good")


def test_remarks_and_types_are_left_out_and_hide_nothing(static):
    (static / "good.js").write_text(
        "/** @param {number} x */\nexport function f(x) {\n  return { // a remark\n    y: x, // another\n  };\n}\n"
        "const g = (/** @type {number} */ z) => z; // a third\nexport default { render: () => g(f(1).y) };\n"
    )
    assert assemble.read("good.js") == (
        "export function f(x) {return {y: x,};}\nconst g = (z) => z;\nexport default { render: () => g(f(1).y) };\n"
    )
    (static / "good.js").write_text("export const x = 1 // no end\n  + 1;\n")
    with pytest.raises(AssertionError, match=r"good\.js: a remark in the middle"):
        assemble.read("good.js")


@pytest.mark.browser
def test_a_file_that_two_import_stands_once_and_before_them(static, browser):
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
def test_what_is_asked_for_later_is_a_promise_in_both_forms(static, browser):
    """On a page it is a part of its own, which a book may bring by its key when it is asked for."""
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
    page.evaluate("window.xLater = async (...asked) => (window.asked = asked, { MODEL: { size: 4 } })")
    page.evaluate("\n".join([*(script for part, script in scripts.items() if part != key), own]))
    assert page.evaluate("window.seen[0]") == 8
    assert page.evaluate("window.asked") == [key]
    page.close()


def test_what_comes_later_imports_nothing(static):
    (static / "data.js").write_text('import { twice } from "./kit.js";\nexport const size = twice(2);\n')
    (static / "good.js").write_text(
        'const later = () => import("./data.js");\nexport default { render: () => later() };\n'
    )
    with pytest.raises(AssertionError, match=r"data\.js: comes later and imports nothing"):
        assemble.es_module("good")


def test_a_name_that_would_hide_a_file_is_refused(static):
    (static / "good.js").write_text(GOOD + "function kit() {}\n")
    with pytest.raises(AssertionError, match=r"kit\.js: who imports it has that name for something else"):
        assemble.es_module("good")


def test_files_that_import_each_other_are_refused(static):
    (static / "good.js").write_text(GOOD)
    (static / "kit.js").write_text('import { a } from "./b.js";\nexport const twice = a;\n')
    (static / "b.js").write_text('import { twice } from "./kit.js";\nexport const a = twice;\n')
    with pytest.raises(AssertionError, match=r"kit\.js: imports itself, by way of b"):
        assemble.es_module("good")


def test_the_state_is_json(static):
    (static / "good.js").write_text(GOOD)
    script = assemble.classic_script("good", {"b": [1.5, None, True], "a": "<"})
    start = script[script.rindex("host(explorer, ") + len("host(explorer, ") : script.rindex(");\n})();")]
    assert json.loads(start) == {"b": [1.5, None, True], "a": "<"}


TRICKY = r"""
export default { render: () => {
  const [a, b] = [3, 0.5];
  const words = "a , const b = 0.5 ; (x) => x";
  const twice = (f) => { return (x) => f(f(x)); };
  const kept = { const: twice((x) => x + 1)(a) };
  const more = `${ a }  +  b , ( c )`;
  const split = "x  y,z".split(/ +|, */g).length;
  return [a - -b, a + +b, a / 2, 1 - a, a ? b : a, words, more, split, 10.5, `${a - 1}`.length, kept.const].map(String);
} };
"""


@pytest.mark.browser
def test_spaces_that_separate_nothing_go_and_what_is_written_stays(static, browser):
    (static / "good.js").write_text(TRICKY)
    script = assemble.classic_script("good", {})
    assert "let[a,b]=[3,.5];" in script
    assert "{return x=>f(f(x))}" in script
    page = browser.new_page()
    page.evaluate(script)
    said = ["3.5", "3.5", "1.5", "-2", "0.5", "a , const b = 0.5 ; (x) => x", "3  +  b , ( c )", "3", "10.5", "1", "5"]
    assert page.evaluate("window.seen[0]") == said
    page.close()


def test_a_template_inside_another_is_refused(static):
    (static / "good.js").write_text("export default { render: (a) => `x${a.map((b) => `${b} y`)}` };\n")
    with pytest.raises(AssertionError, match="a template inside another"):
        assemble.classic_script("good", {})


def test_a_part_has_another_key_when_its_text_is_another(static):
    (static / "good.js").write_text(GOOD)
    before, own = assemble.page_scripts("good", {})
    kit = static / "kit.js"
    kit.write_text(kit.read_text().replace("hidden = 2", "hidden = 3"))
    after, _ = assemble.page_scripts("good", {})
    assert [key.split("-")[0] for key in before] == ["kit", "host"]
    assert len(before.keys() & after.keys()) == 1  # of the host, which is the same
    assert all(key in own for key in before)
