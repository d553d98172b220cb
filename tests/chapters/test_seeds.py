"""Every chapter sets one seed in its first code cell, and tools/run_seeds.py runs chapters with other seeds."""

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETS = "SEED = 0; torch.manual_seed(SEED);"
SEEDERS = {
    *("torch.manual_seed", "torch.seed", "torch.random.manual_seed", "torch.random.seed"),
    *("torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.default_generator.manual_seed"),
    *("np.random.seed", "numpy.random.seed", "random.seed", "transformers.set_seed"),
}
# Exceptions: a seed from another publication that the chapter reproduces, and the split of real data, which must agree
# with the recorded runs for every seed.
QUOTED = {
    ("why-attention", "torch.Generator().manual_seed(42)"),
    ("sequences-graphs-decisions", "torch.Generator().manual_seed(100 * seed + stream)"),
}

NOTEBOOKS = sorted(path for top in ("book", "assignments/source") for path in (ROOT / top).rglob("*.ipynb"))
CHAPTERS = [path for path in NOTEBOOKS if path.parent.parent == ROOT / "book"]
LIBRARY = sorted((ROOT / "lessons_lib").rglob("*.py"))


@cache
def parse(source: str) -> ast.Module:
    """Parse a cell without IPython's magic lines."""
    return ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE))


def sources(path: Path) -> list[str]:
    if path.suffix == ".py":
        return [path.read_text(encoding="utf-8")]
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def seeders(source: str) -> list[str]:
    """Return the calls and imports that seed a global generator."""
    if "seed" not in source:  # every name in SEEDERS contains it
        return []
    called = [node for node in ast.walk(parse(source)) if isinstance(node, ast.Call)]
    found = [ast.unparse(call) for call in called if ast.unparse(call.func) in SEEDERS]
    imported = [node for node in ast.walk(parse(source)) if isinstance(node, ast.ImportFrom)]
    names = {f"{node.module}.{alias.name}" for node in imported for alias in node.names}
    return [*found, *sorted(names & SEEDERS)]


def frozen(source: str) -> list[str]:
    """Return the ``manual_seed`` calls whose seed is neither derived from ``SEED`` nor random."""
    called = [node for node in ast.walk(parse(source)) if isinstance(node, ast.Call)]
    seeded = [call for call in called if isinstance(call.func, ast.Attribute) and call.func.attr == "manual_seed"]
    return [
        ast.unparse(call) for call in seeded if not re.search(r"\bSEED\b|torch\.randint\(", ast.unparse(call.args[0]))
    ]


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(ROOT)))
def test_library_seeds_no_global_generator(path):
    assert [found for source in sources(path) for found in seeders(source)] == []


@pytest.mark.parametrize("path", sorted({*NOTEBOOKS} - {*CHAPTERS}), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_exercises_seed_no_global_generator(path):
    assert [found for source in sources(path) for found in seeders(source)] == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_sets_one_seed_for_all_generators(path):
    setting = [source for source in sources(path) if seeders(source)]
    assert len(setting) == 1, setting
    assert setting[0].splitlines().count(SETS) == 1
    assert seeders(setting[0]) == ["torch.manual_seed(SEED)"]
    rest = [ast.unparse(one) for one in parse(setting[0].replace(SETS, "")).body]
    assert [line for line in rest if not line.startswith(("import ", "from ", "pass", "torch.set_default_"))] == []
    assert {(path.stem, found) for source in sources(path) for found in frozen(source)} <= QUOTED


@pytest.mark.parametrize(
    "source",
    [
        "def learn(seed):\n    torch.manual_seed(seed)",
        "with torch.random.fork_rng():\n    torch.random.manual_seed(0)",
        "import numpy as np\nnp.random.seed(0)",
        "%matplotlib inline\ntorch.cuda.manual_seed_all(3)",
        "from torch import manual_seed\nmanual_seed(0)",
    ],
)
def test_seeders_finds_global_seeding(source):
    assert len(seeders(source)) == 1


def test_seeders_and_frozen_accept_generators_derived_from_the_seed():
    own = "draw = torch.Generator().manual_seed(SEED + 7)\nx = torch.randn(3, generator=draw)"
    assert seeders(own) == frozen(own) == []
    assert frozen("draw = torch.Generator().manual_seed(int(torch.randint(10**6, ())))") == []
    assert frozen("torch.Generator().manual_seed(7)") == ["torch.Generator().manual_seed(7)"]


# --- the command that changes it ------------------------------------------------------------------------------------


@pytest.fixture
def run_seeds():
    for needed in ("nbclient", "nbformat", "tqdm", "yaml"):
        pytest.importorskip(needed)
    import run_seeds

    return run_seeds


TRUTH = """<span class="g-truth" data-guess="ab" data-answer="{&quot;note&quot;: &quot;%s&quot;}"></span>"""
CELLS = {
    "imports": "import torch\nSEED = 0; torch.manual_seed(SEED);",
    "draws": "x = torch.randn(3)\ny = torch.randn(5)",
    "holds": "assert len(x) == 3\ntorch.testing.assert_close(x, x)",
    "frozen": "z = x.sum()\nassert SEED == 0, 'of seed 0 alone'",
    "goes-on": "assert len(y) == 5",
    "guess": f"from IPython.display import HTML\nHTML('{TRUTH % 'That lies beyond the scale.'}')",
}


def a_chapter(folder: Path, cells: dict[str, str]) -> Path:
    def cell(name, source):
        return {
            "cell_type": "code",
            "id": name,
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": source,
        }

    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    whole = {"cells": [cell(*item) for item in cells.items()], "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    path = folder / "book/part/drawn.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(whole))
    pages = [{"file": "book/part/drawn"}, {"file": "book/part/a-page-of-markdown"}]
    (folder / "_toc.yml").write_text(json.dumps({"parts": [{"chapters": pages}]}))
    return path


@pytest.mark.thorough
def test_main_reports_failed_cells_for_other_seeds(run_seeds, tmp_path):
    path, report = a_chapter(tmp_path, CELLS), tmp_path / "_build/seeds.txt"
    before = path.read_text()
    code = f"""
import run_seeds
from pathlib import Path
run_seeds.chapters, run_seeds.REPORT = lambda: {{"drawn": Path({str(path)!r})}}, Path({str(report)!r})
raise SystemExit(run_seeds.main(["--seeds", "0", "4", "--jobs", "2"]))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tools"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 1, done.stderr
    assert report.read_text().splitlines() == [
        "drawn, seed 0: all 4 assertions held",
        "    a guess: That lies beyond the scale.",
        "drawn, seed 4: 1 cells failed",
        "    frozen: `assert SEED == 0, 'of seed 0 alone'` AssertionError: of seed 0 alone",
        "    a guess: That lies beyond the scale.",
        "1 of 2 runs without a failing cell",
    ]
    assert "1 of 2 runs" in done.stdout
    assert path.read_text() == before


@pytest.mark.parametrize("cells", [{"imports": "import torch"}, {"a": CELLS["imports"], "b": CELLS["imports"]}])
def test_with_seed_requires_exactly_one_seed(run_seeds, tmp_path, cells):
    path = a_chapter(tmp_path, cells)
    with pytest.raises(ValueError, match=r"one cell of a chapter must say SEED = 0, and once, got (0|2)"):
        run_seeds.with_seed(run_seeds.read(path), 3)


def test_chapters_lists_exactly_the_chapters(run_seeds, tmp_path, capsys):
    assert set(run_seeds.chapters()) == {path.stem for path in CHAPTERS} | {"real-model"}  # a page with a seed
    a_chapter(tmp_path, {"imports": "import torch"})
    assert run_seeds.chapters(tmp_path) == {}
    with pytest.raises(SystemExit):
        run_seeds.main(["no-such-chapter"])
    assert "chapters must be of why-attention" in capsys.readouterr().err


def test_run_seeds_is_a_make_target_outside_the_tests():
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^seeds: .*\n\t\$\(PY\) tools/run_seeds\.py", makefile, re.MULTILINE)
    assert "run_seeds" not in (ROOT / "tools/run_tests.py").read_text()
