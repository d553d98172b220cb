"""The library has a reading order: a file imports only from files above it, and the core only what a server has."""

import ast
import re
import sys
from pathlib import Path

import pytest

import lessons_lib

READING_ORDER = [
    "shapes",
    "softmax",
    "information",
    "geometry",
    "markov",
    "masks",
    "attention",
    "patterns",
    "positions",
    "multihead",
    "feedforward",
    "norms",
    "blocks",
    "gpt",
    "encoder_decoder",
    "generation",
    "data",
    "training",
    "diagnostics",
    "efficient",
    "flash",
    "distributed",
    # From here on a file may need a notebook, a figure or a page.
    "notebook",
    "palette",
    "plots",
    "widgets",
    "checks",
]
CORE = READING_ORDER[: READING_ORDER.index("notebook")]
EVERYWHERE = {"torch", "numpy", "einops", "jaxtyping"}
ALSO = {"training": {"tqdm", "safetensors"}, "gpt": {"safetensors", "transformers"}, "flash": {"triton"}}

ROOT = Path(lessons_lib.__file__).parent


def sources(name: str) -> list[Path]:
    file = ROOT / f"{name}.py"
    return [file] if file.exists() else sorted((ROOT / name).rglob("*.py"))


EXISTING = [name for name in READING_ORDER if sources(name)]


def imported(source: str, package: tuple[str, ...] = ("lessons_lib",)) -> set[str]:
    """Every module that the source imports, at any depth, relative imports resolved against ``package``."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            outer = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*outer, *filter(None, [node.module])))
            found |= {f"{base}.{alias.name}" for alias in node.names} if base == "lessons_lib" else {base}
    return found


def imports_of(path: Path) -> set[str]:
    return imported(path.read_text(), ("lessons_lib", *path.relative_to(ROOT).parent.parts))


def own(modules: set[str]) -> set[str]:
    return {module.split(".")[1] for module in modules if module.startswith("lessons_lib.")}


def test_every_file_has_a_place():
    files = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")}
    assert files - {"__init__"} <= set(READING_ORDER)


@pytest.mark.parametrize("name", EXISTING)
def test_a_file_imports_only_what_comes_before_it(name):
    above = set(READING_ORDER[: READING_ORDER.index(name)])
    for path in sources(name):
        later = own(imports_of(path)) - above - {name}
        assert not later, f"{path.relative_to(ROOT)} imports {later}, which the reading order does not put above it"


@pytest.mark.parametrize("name", [name for name in EXISTING if name in CORE])
def test_the_core_needs_nothing_that_a_server_lacks(name):
    allowed = sys.stdlib_module_names | {"lessons_lib"} | EVERYWHERE | ALSO.get(name, set())
    for path in sources(name):
        foreign = {module.split(".")[0] for module in imports_of(path)} - allowed
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}; the core runs without"


def test_the_docstring_lists_the_files_in_order():
    first_words = [line.split()[0] for line in lessons_lib.__doc__.splitlines() if line.startswith("    ")]
    listed = [word for word in first_words if word in READING_ORDER]
    assert listed == EXISTING, "each file has one line in lessons_lib/__init__.py, in the reading order"


def test_the_reference_in_the_book_holds_the_files_in_order():
    pages = re.findall(r"book/(reference/\w+)", (ROOT.parent / "_toc.yml").read_text())
    texts = [(ROOT.parent / f"book/{page}.rst").read_text() for page in pages]
    assert [module for text in texts for module in re.findall(r":: lessons_lib\.(\w+)$", text, re.M)] == EXISTING


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
        ("def f():\n    import triton.language as tl", (), {"triton.language"}),
    ],
    ids=lambda part: part if isinstance(part, str) else None,  # a set prints in any order
)
def test_no_form_of_import_escapes(line, package, modules):
    assert imported(line, ("lessons_lib", *package)) == modules
