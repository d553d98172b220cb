"""Tests of tools/build_solutions.py: the instructors' site has all solutions, and is separate from the public site."""

import re

import nbformat
import pytest
import yaml

pytest.importorskip("nbgrader")

from build_solutions import MASTERS, ROOT, with_solutions, write_sources

from grading.draw_numbers import drawn

EVERY_MASTER = sorted(MASTERS.glob("*/*.ipynb"))


def sources(notebook) -> list[str]:
    return [cell.source for cell in notebook.cells]


@pytest.mark.parametrize("master", EVERY_MASTER, ids=lambda path: path.stem)
def test_with_solutions_keeps_all_cells_in_order(master):
    page, given = with_solutions(master), drawn(nbformat.read(master, 4), master.stem)
    nbformat.validate(page)
    assert "lessons_lib[notebook]" in page.cells[0].source, "the header that installs the library comes first"
    for shown, cell in zip(page.cells[1:], given.cells, strict=True):
        on_paper = cell.cell_type == "markdown" and cell.metadata.nbgrader.solution
        assert shown.source == (f":::{{admonition}} Solution\n{cell.source}\n:::" if on_paper else cell.source)


def test_write_sources_writes_the_book_with_solved_exercises(tmp_path):
    before = {path: path.read_bytes() for path in (ROOT / "book/exercises").rglob("*.ipynb")}
    write_sources(tmp_path)
    assert {path: path.read_bytes() for path in (ROOT / "book/exercises").rglob("*.ipynb")} == before
    assert (tmp_path / "_toc.yml").read_text() == (ROOT / "_toc.yml").read_text()
    for page in re.findall(r"file: (\S+)", (tmp_path / "_toc.yml").read_text()):
        assert list(tmp_path.glob(f"{page}.*")), page
    for master in EVERY_MASTER:
        page = nbformat.read(tmp_path / "book/exercises" / master.parent.name / master.name, 4)
        assert sources(page) == sources(with_solutions(master))
    settings = yaml.safe_load((tmp_path / "_config.yml").read_text())
    ordinary = yaml.safe_load((ROOT / "_config.yml").read_text())
    assert settings["title"] == settings["sphinx"]["config"]["html_title"] == f"{ordinary['title']}, with solutions"
    assert settings["execute"]["exclude_patterns"] == []
    assert settings["sphinx"]["local_extensions"]["stored_outputs"] == "book/_ext"
    assert settings["execute"]["allow_errors"] is False


def test_workflow_does_not_publish_solutions():
    workflow = (ROOT / ".github/workflows/publish.yml").read_text()
    assert re.findall(r"\bpath: ([\w/]+)", workflow) == ["_build/html", "_build/notebooks", "notebooks"]
    assert "solutions" not in workflow
