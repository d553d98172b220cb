"""Tests of tools/dependencies.py: a notebook's key changes with its dependencies, and with nothing else."""

import json
import re
import shutil
import textwrap
from pathlib import Path

import pytest
from dependencies import LIBRARY, RECORDS, Library, is_data

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(path for path in (ROOT / "book").glob("*/*.ipynb"))
FILES = {
    "requirements.txt": "torch==2.13.0  # the tensors\n",
    "lessons_lib/__init__.py": '"""All."""\n',
    "lessons_lib/softmax.py": '"""Scores."""\n\ndef softmax(x):\n    """Return weights."""\n    return x  # as it is\n',
    "lessons_lib/attention.py": "from .softmax import softmax\n\ndef attention(x):\n    return softmax(x)\n",
    "lessons_lib/masks.py": "def causal(n):\n    import lessons_lib.softmax\n",
    "lessons_lib/alone.py": "X = 1\n",
    "lessons_lib/reader.py": 'DATA = "digits.xz"\n',
    "lessons_lib/reads_any.py": 'def load(name):\n    return open(f"{name}.csv")\n',
    "lessons_lib/by_name.py": 'import importlib\nsoftmax = importlib.import_module("lessons_lib.softmax")\n',
    "lessons_lib/flash/__init__.py": "from lessons_lib.flash.tiled import forward\nflash = forward\ndef f(): ...\n",
    "lessons_lib/flash/tiled.py": "def forward(x):\n    return x\n",
    "lessons_lib/flash/block_mask.py": "TABLE = {}\n",
    "lessons_lib/widgets/__init__.py": "from .one import One\nfrom .two import Two as Second\nN = 1\n",
    "lessons_lib/widgets/one.py": 'SCRIPT = "one_model.js"\nclass One: ...\n',
    "lessons_lib/widgets/two.py": "class Two: ...\n",
    "lessons_lib/widgets/static/one.js": "/** Draws. */\n",
    "lessons_lib/widgets/static/one.css": "p {}\n",
    "lessons_lib/widgets/static/one_model.js": "/** Weights. Written by tools/train_one.py. */\nconst X = {};\n",
    "lessons_lib/data/digits.xz": "digits\n",
    "lessons_lib/data/sunspots.csv": "1700,5\n",
    "benchmarks/results/recall.json": "{}\n",
    "benchmarks/results/flash-cpu.json": "{}\n",
}


@pytest.fixture
def root(tmp_path) -> Path:
    """A small repository with a library, data files and records."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def notebook(*cells: str, tags: tuple[str, ...] = ()) -> dict:
    return {"cells": [{"cell_type": "code", "source": cell, "metadata": {"tags": list(tags)}} for cell in cells]}


def changed_by(root: Path, code: str, name: str, text: str) -> bool:
    """Return whether the key of a notebook with this code changes when this text is written to a file."""
    before = Library(root).key(notebook(code))
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    return Library(root).key(notebook(code)) != before


DEPENDENCIES = [
    ("from lessons_lib.softmax import softmax", "lessons_lib/softmax.py"),
    ("from lessons_lib.attention import attention", "lessons_lib/softmax.py"),
    ("from lessons_lib import alone as a, attention", "lessons_lib/softmax.py"),
    ("import lessons_lib.attention as at", "lessons_lib/softmax.py"),
    ("from lessons_lib import masks", "lessons_lib/softmax.py"),
    ("def f():\n    from lessons_lib import alone", "lessons_lib/alone.py"),
    ("import lessons_lib\nlessons_lib.alone.X", "lessons_lib/alone.py"),
    ("from lessons_lib import by_name", "lessons_lib/softmax.py"),
    ("import importlib\nimportlib.import_module('lessons_lib.alone')", "lessons_lib/alone.py"),
    ("import importlib\nimportlib.import_module('lessons_lib.' + name)", "lessons_lib/alone.py"),
    ("program = '''\nimport sys\nfrom lessons_lib.attention import attention\n'''", "lessons_lib/softmax.py"),
    ("program = f'''\nfrom lessons_lib import alone as a, masks\nprint({1})\n'''", "lessons_lib/softmax.py"),
    ("from lessons_lib.flash import flash", "lessons_lib/flash/tiled.py"),
    ("from lessons_lib.flash.block_mask import TABLE", "lessons_lib/flash/__init__.py"),
    ("from lessons_lib.widgets import One", "lessons_lib/widgets/one.py"),
    ("from lessons_lib.widgets import Second", "lessons_lib/widgets/two.py"),
    ("from lessons_lib.widgets import N", "lessons_lib/widgets/__init__.py"),
    ("from lessons_lib.widgets import *", "lessons_lib/widgets/two.py"),
    ("from lessons_lib import widgets", "lessons_lib/widgets/two.py"),
    ("from lessons_lib.widgets import One", "lessons_lib/widgets/static/one_model.js"),
    ("from lessons_lib.reader import DATA", "lessons_lib/data/digits.xz"),
    ("from lessons_lib.reads_any import load", "lessons_lib/data/sunspots.csv"),
    ("file = 'benchmarks/results/recall.json'", "benchmarks/results/recall.json"),
    ("files = results.glob('flash-*.json')", "benchmarks/results/flash-cpu.json"),
    ("files = results.glob('flash-*.json')", "benchmarks/results/flash-h100.json"),
    ("file = results / f'{name}.json'", "benchmarks/results/recall.json"),
    ("file = results / (name + '.json')", "benchmarks/results/recall.json"),
    ("%%bash\nls", "lessons_lib/alone.py"),
    ("1", "requirements.txt"),
]
NO_DEPENDENCIES = [
    ("from lessons_lib.softmax import softmax", "lessons_lib/attention.py"),
    ("from lessons_lib.softmax import softmax", "lessons_lib/widgets/static/one.js"),
    ("from lessons_lib.widgets import One", "lessons_lib/widgets/static/one.js"),
    ("from lessons_lib.widgets import One", "lessons_lib/widgets/static/one.css"),
    ("from lessons_lib.widgets import One", "lessons_lib/widgets/two.py"),
    ("from lessons_lib.widgets.one import One", "lessons_lib/widgets/two.py"),
    ("from lessons_lib.flash.block_mask import TABLE", "lessons_lib/flash/tiled.py"),
    ("from lessons_lib.softmax import softmax", "lessons_lib/data/digits.xz"),
    ("from lessons_lib.softmax import softmax", "benchmarks/results/recall.json"),
    ("import lessons_lib\nlessons_lib.__file__", "lessons_lib/alone.py"),
    ("# from lessons_lib import alone", "lessons_lib/alone.py"),
    ("'see lessons_lib.alone'", "lessons_lib/alone.py"),
    ("root.rglob('*.py')", "lessons_lib/alone.py"),
]


@pytest.mark.parametrize(("code", "name"), DEPENDENCIES)
def test_key_changes_with_a_dependency(root, code, name):
    assert changed_by(root, code, name, FILES.get(name, "") + "\nY = 3\n")


@pytest.mark.parametrize(("code", "name"), NO_DEPENDENCIES)
def test_key_does_not_change_with_other_files(root, code, name):
    assert not changed_by(root, code, name, FILES[name] + "\nY = 3\n")


def test_key_ignores_docstrings_comments_and_line_breaks(root):
    other = """
    '''Other words.'''
    # and a remark
    def softmax(
        x,
    ):
        '''Other words here too.'''

        return (x)
    """
    assert not changed_by(root, "import lessons_lib.softmax", "lessons_lib/softmax.py", textwrap.dedent(other))


def test_key_ignores_comments_in_requirements(root):
    assert not changed_by(root, "1", "requirements.txt", "# pins\ntorch==2.13.0\n")


def test_key_of_a_module_read_as_text_includes_comments(root):
    code = "Path(lessons_lib.__file__).with_name('alone.py').read_text()"
    assert changed_by(root, code, "lessons_lib/alone.py", "X = 1  # a remark\n")


def test_key_depends_on_code_and_tags_only(root):
    library, cell = Library(root), notebook("1")["cells"][0]
    key = library.key(notebook("1"))
    assert key == library.key({"cells": [{"cell_type": "markdown", "source": "Words.", "metadata": {}}, cell]})
    assert key == library.key({"cells": [{**cell, "id": "other", "metadata": {"mystnb": {"figure": {}}}}]})
    assert key != library.key(notebook("2"))
    assert key != library.key(notebook("1", "1"))
    assert key != library.key(notebook("1", tags=("raises-exception",)))


def test_lazy_package_attribute_depends_on_the_whole_package(root):
    lazy = "def __getattr__(name):\n    import importlib\n    return importlib.import_module('lessons_lib.' + name)\n"
    (root / "lessons_lib/__init__.py").write_text(lazy)
    assert changed_by(root, "from lessons_lib import anything", "lessons_lib/alone.py", "X = 2")
    assert not changed_by(root, "from lessons_lib import masks", "lessons_lib/alone.py", "X = 3")


# --- the repository itself ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(ROOT)


def code_of(path: Path) -> list[str]:
    return ["".join(c["source"]) for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_dependencies_contain_named_records_and_modules(library, path):
    modules, files = library.dependencies(code_of(path))
    code = "\n".join(code_of(path))
    named = {record for record in (ROOT / RECORDS).glob("*.json") if record.name in code}
    assert named <= files
    for name in re.findall(r"(?:from|import) (lessons_lib(?:\.\w+)*)", code):
        top = library.file(name)
        assert top is not None
        assert top in modules or top.name == "__init__.py"


def test_only_flash_chapters_depend_on_tiled_attention(library):
    tiles = ROOT / "lessons_lib/flash/tiled.py"
    needing = {path.stem for path in CHAPTERS if tiles in library.dependencies(code_of(path))[0]}
    assert needing == {"flash", "long-context"}


def test_every_data_file_is_a_dependency_of_a_module_or_script(library):
    everywhere = [
        f"import {'.'.join(path.relative_to(ROOT).with_suffix('').parts)}" for path in (ROOT / LIBRARY).rglob("*.py")
    ]
    data = {path for path in (ROOT / LIBRARY).rglob("*") if path.is_file() and is_data(path)}
    left = data - library.dependencies([line.removesuffix(".__init__") for line in everywhere])[1]
    scripts = "\n".join(path.read_text() for path in (ROOT / LIBRARY / "page/widgets/static").glob("*.js"))
    assert not [path for path in left if f'"./{path.name}"' not in scripts]


def test_copied_library_has_the_same_keys(library, tmp_path):
    shutil.copytree(ROOT / LIBRARY, tmp_path / LIBRARY, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / RECORDS, tmp_path / RECORDS)
    shutil.copy(ROOT / "requirements.txt", tmp_path)
    chapter = json.loads(CHAPTERS[0].read_text())
    assert Library(tmp_path).key(chapter) == library.key(chapter)
