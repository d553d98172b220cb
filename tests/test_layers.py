"""The library has a reading order: a file imports only from files above it, and the core only what a server has.

The order is the one that the docstrings state, ``lessons_lib/__init__.py`` for the library and each package's own for
its files: in the list that follows the words *reading order*, the first word of each line.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dependencies import references

import lessons_lib

ROOT = Path(lessons_lib.__file__).parent
EVERYWHERE = {"torch", "numpy", "einops", "jaxtyping"}
# What a file of the core may import besides.
ALSO = {
    "checkpoints": {"safetensors"},
    "huggingface": {"transformers"},
    "training": {"tqdm"},
    "flash.triton_kernels": {"triton"},
    "flash.table_kernels": {"triton"},
    "flash.launch": {"triton"},
}


def listed(docstring: str) -> list[str]:
    """Return the first words of the lines in the list that follows the words *reading order*, continuations left out.

    The words may be anywhere in a paragraph; the list is the first indented block after them.
    """
    found = re.search(r"reading\s+order.*?\n\n((?: {4}[^\n]*\n?)+)", docstring, re.DOTALL)
    return re.findall(r"^ {4}(\w+)", found[1], re.MULTILINE) if found else []


def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


FOLDERS = sorted(path.parent for path in ROOT.rglob("__init__.py"))
ORDER = {folder: listed(ast.get_docstring(syntax(folder / "__init__.py")) or "") for folder in FOLDERS}
READING_ORDER = ORDER[ROOT]
CORE = READING_ORDER[: READING_ORDER.index("notebook")]  # from there on a file may need a notebook, a figure or a page


def is_signpost(tree: ast.Module) -> bool:
    """Say whether a file defines nothing and only says where its names have moved: it is not there to be read."""
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return defined == {"__getattr__"}


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def deprecated(node: ast.AST) -> bool:
    """Say whether a function warns of its end: for one release an old name may look below for the new one."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return isinstance(node, ast.FunctionDef) and {"warnings", "DeprecationWarning"} <= names


def lasting(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of a source but what lies in a deprecated function."""
    yield tree
    for node in ast.iter_child_nodes(tree):
        if not deprecated(node):
            yield from lasting(node)


def imported(tree: ast.AST, package: tuple[str, ...] = ("lessons_lib",), walk=ast.walk) -> set[str]:
    """Every module that the source imports, at any depth, relative imports resolved against ``package``."""
    found = set()
    for base, name in references(tree, package, walk):
        inside = f"{base}.{name}"
        found.add(inside if name and (base == "lessons_lib" or is_module(inside)) else base)
    return found


def imports_of(path: Path, *, moved_too: bool = True) -> set[str]:
    """Every module that a file imports; without those that only a deprecated function looks into, if asked."""
    walk = ast.walk if moved_too else lasting
    return imported(syntax(path), ("lessons_lib", *path.relative_to(ROOT).parent.parts), walk)


def module(path: Path) -> str:
    """Return a file's name in the library: ``attention``, ``flash.tiled``, and ``flash`` for ``flash/__init__.py``."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def own(modules: set[str]) -> set[str]:
    return {name.removeprefix("lessons_lib.") for name in modules if name.startswith("lessons_lib.")}


FILES = [path for path in sorted(ROOT.rglob("*.py")) if not is_signpost(syntax(path))]
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
    below = {name for name in own(imports_of(path, moved_too=False)) if not () < place(name) < place(module(path))}
    assert not below, f"{module(path)} imports {sorted(below)}, which the reading order does not put above it"


@pytest.mark.parametrize("path", [path for path in FILES if module(path).split(".")[0] in CORE], ids=module)
def test_the_core_needs_nothing_that_a_server_lacks(path):
    allowed = sys.stdlib_module_names | {"lessons_lib"} | EVERYWHERE
    foreign = {name.split(".")[0] for name in imports_of(path)} - allowed
    assert foreign == ALSO.get(module(path), set()), f"{module(path)} imports more or less than ALSO says"


def test_the_package_itself_imports_nothing():
    assert imports_of(ROOT / "__init__.py") == set()


def test_the_reference_in_the_book_holds_the_files_in_order():
    pages = re.findall(r"book/(reference/\w+)", (ROOT.parent / "_toc.yml").read_text())
    texts = [(ROOT.parent / f"book/{page}.rst").read_text() for page in pages]
    assert [module for text in texts for module in re.findall(r":: lessons_lib\.(\w+)$", text, re.M)] == READING_ORDER


@pytest.mark.parametrize(
    ("line", "package", "modules"),
    [
        ("import lessons_lib.masks as m", (), {"lessons_lib.masks"}),
        ("from lessons_lib import masks, plots", (), {"lessons_lib.masks", "lessons_lib.plots"}),
        ("from lessons_lib.masks import causal", (), {"lessons_lib.masks"}),
        ("from . import masks", (), {"lessons_lib.masks"}),
        ("from .masks import causal", (), {"lessons_lib.masks"}),
        ("from .. import masks", ("flash",), {"lessons_lib.masks"}),
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
    assert place("efficient") < place("efficient.linear") < place("flash.tiled")
    assert place("nowhere") == place("flash.nowhere") == ()


@pytest.mark.parametrize(
    ("source", "signpost"),
    [
        ("NAMES = {}\ndef __getattr__(name): ...", True),
        ("def __getattr__(name): ...\ndef f(): ...", False),
        ("from lessons_lib.masks import causal", False),
    ],
)
def test_a_file_that_only_points_elsewhere_needs_no_place(source, signpost):
    assert is_signpost(ast.parse(source)) is signpost


def test_only_a_deprecated_function_may_look_below():
    shim = "import warnings\ndef f():\n    import lessons_lib.masks\n    warnings.warn('', {})\n"

    def lasts(source: str) -> set[str]:
        return imported(ast.parse(source), walk=lasting)

    assert lasts(shim.format("DeprecationWarning")) == {"warnings"}
    assert lasts(shim.format("UserWarning")) == {"warnings", "lessons_lib.masks"}
    assert lasts("warnings.warn('', DeprecationWarning)\nimport lessons_lib.masks") == {"lessons_lib.masks"}
