"""Rooms import only from rooms above them, files only from files above them; above ``page`` nothing needs Jupyter.

The order of the rooms is listed in ``lessons_lib/__init__.py``, the order of a room's files in the room's
``__init__.py``: the first word of each line of the list that follows the words *reading order*.
"""

import ast
import json
import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from dependencies import parsed, references

import lessons_lib

ROOT = Path(lessons_lib.__file__).parent
EVERYWHERE = {"torch", "numpy", "einops", "jaxtyping"}
# What a file of the core may import besides.
ALSO = {
    "transformer.checkpoints": {"safetensors"},
    "transformer.huggingface": {"transformers"},
    "training.loop": {"tqdm"},
    "flash.triton_kernels": {"triton"},
    "flash.block_mask_kernels": {"triton"},
    "flash.autograd": {"triton"},
}


def listed(docstring: str) -> list[str]:
    """Return the first words of the lines in the list that follows the words *reading order*, continuations left out.

    The words may be anywhere in a paragraph; the list is the first indented block after them.
    """
    found = re.search(r"reading\s+order.*?\n\n((?: {4}[^\n]*\n?)+)", docstring, re.DOTALL)
    return re.findall(r"^ {4}(\w+)", found[1], re.MULTILINE) if found else []


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


FOLDERS = sorted(path.parent for path in ROOT.rglob("__init__.py"))
ORDER = {folder: listed(ast.get_docstring(syntax(folder / "__init__.py")) or "") for folder in FOLDERS}
READING_ORDER = ORDER[ROOT]
CORE = READING_ORDER[: READING_ORDER.index("page")]  # from there on a file may need Jupyter or Matplotlib


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def imported(tree: ast.AST, package: tuple[str, ...] = ("lessons_lib",)) -> set[str]:
    """Every module that the source imports, at any depth, relative imports resolved against ``package``."""
    found = set()
    for base, name in references(tree, package):
        inside = f"{base}.{name}"
        found.add(inside if name and (base == "lessons_lib" or is_module(inside)) else base)
    return found


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports."""
    return imported(syntax(path), ("lessons_lib", *path.relative_to(ROOT).parent.parts))


def module(path: Path) -> str:
    """Return a file's name in the library: ``attention``, ``flash.tiled``, and ``flash`` for ``flash/__init__.py``."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def own(modules: set[str]) -> set[str]:
    return {name.removeprefix("lessons_lib.") for name in modules if name.startswith("lessons_lib.")}


FILES = sorted(ROOT.rglob("*.py"))
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: module(path) or "lessons_lib")
each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def place(name: str) -> tuple[float, ...]:
    """Where a module stands among all. A package that is made of its files stands behind them, else before them."""
    folder, at = ROOT, []
    for part in name.split(".") if name else []:
        if part not in ORDER.get(folder, []):
            return ()
        at.append(ORDER[folder].index(part))
        folder /= part
    if folder in ORDER:
        made_of = own(imports_of(folder / "__init__.py"))
        at.append(float("inf") if any(other.startswith(f"{name}.") for other in made_of) else -1)
    return tuple(at)


@each_folder
def test_the_docstring_lists_every_file_once(folder):
    beside = {path.stem for path in FILES if path.parent == folder and path.stem != "__init__"}
    beside |= {inner.name for inner in FOLDERS if inner.parent == folder}
    assert sorted(ORDER[folder]) == sorted(beside), (
        f"{folder.relative_to(ROOT.parent)}/__init__.py: after the words 'reading order', each file has one line"
    )


@each_file
def test_a_file_imports_only_what_comes_before_it(path):
    below = {name for name in own(imports_of(path)) if not () < place(name) < place(module(path))}
    assert not below, f"{module(path)} imports {sorted(below)}, which the reading order does not put above it"


@pytest.mark.parametrize("path", [path for path in FILES if module(path).split(".")[0] in CORE], ids=module)
def test_the_core_needs_nothing_that_a_server_lacks(path):
    allowed = sys.stdlib_module_names | {"lessons_lib"} | EVERYWHERE
    foreign = {name.split(".")[0] for name in imports_of(path)} - allowed
    assert foreign == ALSO.get(module(path), set()), f"{module(path)} imports more or less than ALSO says"


ROOMS = [room for room in READING_ORDER if room not in ("distributed", "checks")]
NOTEBOOKS = [path for top in ("book", "assignments/source") for path in sorted((ROOT.parent / top).rglob("*.ipynb"))]


@pytest.mark.parametrize("room", ROOMS)
def test_room_reexports_names_of_its_own_files_alone(room):
    exports = import_module(f"lessons_lib.{room}")
    assert all(vars(exports).get(name) is not None for name in exports.__all__)
    assert {
        base for base in imports_of(ROOT / room / "__init__.py") if not base.startswith(f"lessons_lib.{room}.")
    } == set()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_imports_from_the_room_what_the_room_exports(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    source = parsed("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code" if not magic(cell))
    too_deep = [
        f"{base}.{name}"
        for base, name in references(source)
        if base.startswith("lessons_lib.")
        and base.count(".") >= 2
        and name in import_module(".".join(base.split(".")[:2])).__all__
    ]
    assert not too_deep, f"import these from their room: {too_deep}"


def magic(cell: dict) -> bool:
    return "".join(cell["source"]).lstrip().startswith("%%")


def test_public_name_is_defined_in_one_file():
    """But for the checks, whose functions are named after their exercises."""
    defined = {}
    for path in FILES:
        if "checks" not in path.parts:
            for node in syntax(path).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                    defined.setdefault(node.name, []).append(module(path))
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}


def test_the_package_itself_imports_nothing():
    assert imports_of(ROOT / "__init__.py") == set()


def test_the_reference_in_the_book_holds_the_files_in_order():
    pages = re.findall(r"book/(reference/\w+)", (ROOT.parent / "_toc.yml").read_text())
    texts = [(ROOT.parent / f"book/{page}.rst").read_text() for page in pages]
    named = [name for text in texts for name in re.findall(r"automodule:: lessons_lib\.([\w.]+)$", text, re.M)]
    files = [name for name in named if "." in name]
    assert files == sorted(files, key=place)
    in_order = [f"{room}.{file}" for room in READING_ORDER for file in ORDER.get(ROOT / room, [])]
    internal = {name for name in in_order if name.split(".")[0] in ("efficient", "flash", "checks")}
    assert set(in_order) - internal <= set(named)


@pytest.mark.parametrize(
    ("line", "package", "modules"),
    [
        ("import lessons_lib.attention.masks as m", (), {"lessons_lib.attention.masks"}),
        ("from lessons_lib import flash, page", (), {"lessons_lib.flash", "lessons_lib.page"}),
        ("from lessons_lib.attention import masks", (), {"lessons_lib.attention.masks"}),
        ("from lessons_lib.attention.masks import causal", (), {"lessons_lib.attention.masks"}),
        ("from . import flash", (), {"lessons_lib.flash"}),
        ("from .attention import causal", (), {"lessons_lib.attention"}),
        ("from .. import attention", ("flash",), {"lessons_lib.attention"}),
        ("from .tiled import forward", ("flash",), {"lessons_lib.flash.tiled"}),
        ("from lessons_lib.flash import tiled", (), {"lessons_lib.flash.tiled"}),
        ("from . import tiled", ("flash",), {"lessons_lib.flash.tiled"}),
        ("from lessons_lib.flash import tiled, f", (), {"lessons_lib.flash", "lessons_lib.flash.tiled"}),
        ("def f():\n    import triton.language as tl", (), {"triton.language"}),
    ],
    ids=lambda part: part if isinstance(part, str) else None,  # a set prints in any order
)
def test_no_form_of_import_escapes(line, package, modules):
    assert imported(ast.parse(line), ("lessons_lib", *package)) == modules


def test_the_order_is_read_from_the_first_list_after_the_words():
    text = "Files in reading\norder: so.\n\n    one    first\n           and more\n    two\n\nAxes:\n\n    b  batch\n"
    assert listed(text) == ["one", "two"]
    assert listed("Another list:\n\n    one\n") == []


def test_a_package_stands_behind_its_files_if_it_is_made_of_them_and_before_them_if_not():
    assert place("flash.tiled") < place("flash") < place("distributed")
    assert place("checks") < place("checks.masks")
    assert place("efficient.linear") < place("efficient") < place("flash.tiled")
    assert place("nowhere") == place("flash.nowhere") == ()
