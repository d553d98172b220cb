"""Tests of grading.check_notebook: reading damaged notebooks, restoring metadata, refusing what cannot be graded."""

import ast
import copy
import functools
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from students import OLD, answers, as_written_elsewhere, with_a_copy, without_an_answer, without_metadata

from grading import check_notebook
from grading.check_notebook import locked_cells_found, main, mend, read

ROOT = Path(__file__).resolve().parents[2]
RELEASED = ROOT / "book/exercises/scaling/scaling.ipynb"


@pytest.fixture
def released():
    return read(RELEASED)


def by_name(notebook) -> dict:
    return {cell.metadata.nbgrader.grade_id: cell for cell in notebook.cells if "nbgrader" in cell.metadata}


@pytest.fixture
def run(capsys):
    """Call the command's main function; return its exit status and output."""

    def call(*arguments) -> tuple[int, str]:
        return main([str(argument) for argument in arguments]), capsys.readouterr().out

    return call


def test_mend_complete_notebook_changes_nothing(released):
    notebook, done = mend(answers()(released), released)
    assert done == []
    assert [cell.source for cell in notebook.cells] == [cell.source for cell in answers()(released).cells]


def test_mend_finds_cells_by_the_ids_in_colabs_metadata(released):
    notebook = answers()(released)
    for i, cell in enumerate(notebook.cells):
        cell.metadata = nbformat.NotebookNode(id=cell.id)
        cell.id = f"colab-{i}"
    mended, done = mend(notebook, released)
    assert {line.split(", ")[1] for line in done} == {"found by its id"}
    assert by_name(mended).keys() == by_name(released).keys()


def test_mend_without_metadata_keeps_answers_in_their_cells(released):
    said = {"moments": "first", "eigenvalues": "second", "needle-answer": "third", "needle": "print()"}
    notebook = without_metadata(released)
    for cell, was in zip(notebook.cells, released.cells, strict=True):
        cell.source = said.get(was.id, cell.source)
    mended = by_name(mend(notebook, released)[0])
    assert {name: mended[name].source for name in said} == said
    assert all(mended[name].metadata.nbgrader == cell.metadata.nbgrader for name, cell in by_name(released).items())


@pytest.mark.parametrize("path", sorted(RELEASED.parents[1].glob("*/*.ipynb")), ids=lambda path: path.stem)
def test_mend_restores_the_metadata_of_every_assignment(path):
    """This includes assignments with several consecutive hidden checks, whose text is the same."""
    released = read(path)
    mended = by_name(mend(without_metadata(released), released)[0])
    assert list(mended) == list(by_name(released))
    assert all(mended[name].metadata.nbgrader == cell.metadata.nbgrader for name, cell in by_name(released).items())


def test_mend_does_not_confuse_unanswered_cells(released):
    mended = by_name(mend(without_metadata(released), released)[0])
    order = [name for name in by_name(released) if name in mended]
    assert list(mended) == order


@pytest.mark.parametrize(("minor", "ids"), OLD)
def test_read_formats_without_cell_ids_gives_ids(minor, ids, released, tmp_path):
    path = as_written_elsewhere(answers()(released), minor, ids, tmp_path / "scaling.ipynb")
    notebook = read(path)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    nbformat.validate(notebook)
    assert notebook == read(path), "the ids are random"
    mended, done = mend(notebook, released)
    assert done == []
    assert list(by_name(mended)) == list(by_name(released))


@pytest.mark.parametrize(("minor", "ids"), OLD)
def test_command_mends_formats_without_cell_ids(minor, ids, released, tmp_path, run, monkeypatch):
    logged = []
    monkeypatch.setattr(logging.Logger, "handle", lambda _, record: logged.append(record.getMessage()))
    notebook = answers()(released)
    for cell in notebook.cells:
        cell.metadata = nbformat.NotebookNode()
    path = as_written_elsewhere(notebook, minor, ids, tmp_path / "scaling.ipynb")
    status, said = run(path)
    assert status == 1, said
    assert run(tmp_path / "scaling-mended.ipynb", RELEASED)[0] == 0
    assert logged == [], "nbformat logged a warning"
    nbformat.validate(nbformat.read(tmp_path / "scaling-mended.ipynb", as_version=4))


def test_read_replaces_ids_that_occur_twice_or_are_invalid(released, tmp_path):
    content = json.loads(nbformat.writes(released))
    for cell, given in zip(content["cells"], ["title", "title", "no id", 3, "", "x" * 65], strict=False):
        cell["id"] = given
    (tmp_path / "x.ipynb").write_text(json.dumps(content))
    notebook = read(tmp_path / "x.ipynb")
    nbformat.validate(notebook)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert ids[0] == "title"


def test_mend_generated_ids_do_not_match_by_position(released, tmp_path):
    """If the released notebook has no ids either, a cell inserted at the top must not shift the matches."""
    bare = copy.deepcopy(released)
    theirs = without_metadata(released)
    theirs.cells.insert(1, nbformat.v4.new_markdown_cell("mine"))
    out = read(as_written_elsewhere(bare, 4, "without", tmp_path / "a.ipynb"))
    mended, _ = mend(read(as_written_elsewhere(theirs, 4, "without", tmp_path / "b.ipynb")), out)
    assert [cell.source for cell in by_name(mended).values()] == [
        cell.source for cell in by_name(answers()(released)).values()
    ]


def test_read_an_older_version_gives_the_same_ids_each_time(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("x") for _ in range(3)])
    nbformat.write(notebook, tmp_path / "x.ipynb", version=3)
    assert read(tmp_path / "x.ipynb") == read(tmp_path / "x.ipynb")


def test_read_accepts_lone_surrogate_and_byte_order_mark(run, released, tmp_path):
    notebook = answers()(released)
    notebook.cells[-1].source = "half \ud83d"
    (tmp_path / "scaling.ipynb").write_text(json.dumps(notebook), encoding="utf-8-sig")
    assert run(tmp_path / "scaling.ipynb")[0] == 0
    nbformat.write(mend(read(tmp_path / "scaling.ipynb"), released)[0], tmp_path / "mended.ipynb")
    assert read(tmp_path / "mended.ipynb").cells[-1].source == "half ?"


def test_mend_puts_a_missing_check_behind_its_answer(released):
    notebook = answers()(released)
    notebook.cells = [cell for cell in notebook.cells if cell.id != "scale-check"]
    mended, done = mend(notebook, released)
    assert done == ["scale-check was missing, put back"]
    assert [cell.id for cell in mended.cells] == [cell.id for cell in released.cells]


def test_mend_two_cells_with_one_name_keeps_the_later(released):
    mended, done = mend(with_a_copy(released), released)
    assert done == ["scale occurs twice: the later one counts"]
    assert "math.sqrt" in by_name(mended)["scale"].source
    assert len(mended.cells) == len(released.cells) + 1


def test_mend_restores_points_and_locks(released):
    notebook = answers()(released)
    for cell in notebook.cells:
        if "nbgrader" in cell.metadata:
            cell.metadata.nbgrader |= {"points": 99, "locked": False, "solution": True}
    assert mend(notebook, released)[0].cells[-1].metadata == released.cells[-1].metadata


def test_mend_drops_unknown_grading_metadata(released):
    notebook = answers()(released)
    notebook.cells.append(nbformat.v4.new_code_cell("1", metadata={"nbgrader": {"grade_id": ["no", "name"]}}))
    assert "nbgrader" not in mend(notebook, released)[0].cells[-1].metadata


def test_mend_does_not_change_its_argument(released):
    notebook = without_metadata(released)
    before = copy.deepcopy(notebook)
    mend(notebook, released)
    assert notebook == before


def test_mend_missing_answer_raises(released):
    with pytest.raises(ValueError, match="the answer moments is missing"):
        mend(without_an_answer(released), released)


EXERCISES = sorted(RELEASED.parents[1].glob("*/*.ipynb"))


@pytest.fixture(scope="module")
def every() -> dict:
    return {path.stem: read(path) for path in EXERCISES}


@pytest.mark.parametrize("bare", [False, True], ids=["with metadata", "without"])
def test_locked_cells_distinguish_all_assignments(bare, every):
    """For all pairs: a notebook has at least half of the locked cells of its own assignment, and of no other."""
    handed_in = {name: without_metadata(one) if bare else copy.deepcopy(one) for name, one in every.items()}
    for one in handed_in.values():
        one.metadata = nbformat.NotebookNode()
    for wanted, released in every.items():
        for name, notebook in handed_in.items():
            here, locked = locked_cells_found(notebook, released)
            assert (2 * here >= locked) == (name == wanted), f"{name} for {wanted}: {here} of {locked}"
    assert len(every) * (len(every) - 1) >= 420


MASTERS = {path.stem: path for path in sorted((ROOT / "assignments/source").glob("*/*.ipynb"))}


def solved(name: str, released):
    """Fill the model answers into a released notebook."""
    models = by_name(read(MASTERS[name]))
    notebook = copy.deepcopy(released)
    for given, cell in by_name(notebook).items():
        cell.source = models[given].source if cell.metadata.nbgrader.solution else cell.source
    return notebook


def without_its_name(released):
    """Remove the metadata of the notebook and keep those of its cells."""
    notebook = copy.deepcopy(released)
    notebook.metadata = nbformat.NotebookNode()
    return notebook


LOSSES = {"nothing": copy.deepcopy, "its name": without_its_name, "everything": without_metadata}


@pytest.mark.parametrize("lost", LOSSES)
@pytest.mark.parametrize("filled_in", [False, True], ids=["unsolved", "solved"])
def test_mend_refuses_every_other_assignment_and_names_it(filled_in, lost, every, monkeypatch):
    """Grading looks for the other assignment among the masters, whose locked cells also hold hidden tests."""
    monkeypatch.setattr(check_notebook, "read", functools.cache(read))
    pairs = [(wanted, other) for wanted in every for other in every if wanted != other]
    handed_in = {name: LOSSES[lost](solved(name, one) if filled_in else one) for name, one in every.items()}
    assert len(pairs) >= 420
    for wanted, other in pairs:
        with pytest.raises(ValueError, match=f"the notebook of another assignment, {other}: "):
            mend(handed_in[other], every[wanted], [MASTERS[name] for name in every])


def as_colab_saves(notebook):
    """Keep the cells' text and ids as Colab does: the id in the cell's metadata, and Colab's own notebook metadata."""
    for i, cell in enumerate(notebook.cells):
        cell.metadata, cell.id = nbformat.NotebookNode(id=cell.id, colab={"base_uri": "https://x"}), f"colab-{i}"
    notebook.metadata = nbformat.NotebookNode(colab={"provenance": []}, kernelspec={"name": "python3"})
    return notebook


def as_jupyter_saves(notebook):
    """Add what JupyterLab writes: tags, the language's version, outputs and execution counts."""
    notebook.metadata |= {"widgets": {}, "language_info": {"name": "python", "version": "3.12.1"}}
    for i, cell in enumerate(notebook.cells):
        cell.metadata |= {"editable": True, "slideshow": {"slide_type": ""}, "tags": ["mine"]}
        if cell.cell_type == "code":
            cell.execution_count = i
            cell.outputs = [nbformat.v4.new_output("stream", text="printed")]
    return notebook


def with_cells_deleted(notebook):
    """Delete every third locked cell, checks and texts."""
    locked = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("locked")]
    gone = {cell.id for cell in locked[::3]}
    notebook.cells = [cell for cell in notebook.cells if cell.id not in gone]
    return without_its_name(notebook)


def with_cells_added(notebook):
    """Add a cell of the student's own after each cell, and drop the notebook's metadata."""
    mine = (nbformat.v4.new_code_cell("print('mine')") for _ in notebook.cells)
    notebook.cells = [cell for pair in zip(notebook.cells, mine, strict=True) for cell in pair]
    return without_its_name(notebook)


SAVED = [copy.deepcopy, as_colab_saves, as_jupyter_saves, without_its_name, with_cells_deleted, with_cells_added]


@pytest.mark.parametrize("saved", SAVED)
def test_mend_accepts_every_solved_notebook_however_it_was_saved(saved, every):
    for name, released in every.items():
        answered = solved(name, released)
        answers_given = {given: cell.source for given, cell in by_name(answered).items()}
        mended = by_name(mend(saved(copy.deepcopy(answered)), released, MASTERS.values())[0])
        assert {given: cell.source for given, cell in mended.items()} == answers_given, name
        assert all(
            mended[given].metadata.nbgrader == cell.metadata.nbgrader for given, cell in by_name(released).items()
        )


@pytest.mark.parametrize("lost", ["nothing", "the metadata of the notebook", "all metadata"])
def test_mend_notebook_of_another_assignment_raises_with_its_name(lost, every, released):
    notebook = copy.deepcopy(every["train-gpt"])
    if lost != "nothing":
        notebook.metadata = nbformat.NotebookNode()
    if lost == "all metadata":
        notebook = without_metadata(notebook)
    with pytest.raises(ValueError, match=r"the notebook of another assignment, train-gpt: . of the 14 locked cells"):
        mend(notebook, released, EXERCISES)


def test_mend_solved_notebook_of_another_assignment_raises(released):
    master = read(ROOT / "assignments/source/build-flash/build-flash.ipynb")
    with pytest.raises(ValueError, match=r"another assignment, build-flash: . of the 14 locked cells of scaling"):
        mend(master, released, EXERCISES)


def test_mend_unknown_notebook_raises(released):
    with pytest.raises(ValueError, match="another assignment: 0 of the 14 locked"):
        mend(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")]), released, EXERCISES)


def test_mend_name_in_metadata_decides_if_locked_cells_are_the_same(released):
    notebook = answers()(released)
    notebook.metadata["attention_book"] = {"assignment": "scaling-2025"}
    with pytest.raises(ValueError, match="another assignment, scaling-2025: 14 of the 14 locked cells of scaling"):
        mend(notebook, released)


def test_mend_half_of_the_locked_cells_suffice_whatever_the_metadata(released):
    notebook = answers()(released)
    notebook.metadata = nbformat.NotebookNode(attention_book="odd")
    texts: dict[str, list] = {}
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("locked"):
            texts.setdefault(cell.source, []).append(cell)
    assert len(texts) == 14
    cells = list(texts.values())
    for i, cell in [(i, cell) for i, same in enumerate(cells) for cell in same]:
        cell.source = f"{cell.source} mine" if i < 7 else cell.source.replace("\n", " \r\n")
    assert mend(notebook, released)[0].metadata == released.metadata
    for cell in cells[7]:
        cell.source += " mine"
    with pytest.raises(ValueError, match="6 of the 14 locked cells"):
        mend(notebook, released)


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_released_notebook_names_its_assignment(path, every):
    assert every[path.stem].metadata["attention_book"] == {"assignment": path.stem}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"cells": 3}', "[" * 100_000, "\0"])
def test_read_invalid_notebook_raises(text, tmp_path):
    (tmp_path / "x.ipynb").write_text(text)
    with pytest.raises(ValueError, match="it is no notebook: "):
        read(tmp_path / "x.ipynb")


def test_read_too_large_file_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(check_notebook, "LIMIT", 2**20)
    (tmp_path / "x.ipynb").write_bytes(bytes(2**20 + 1))
    with pytest.raises(ValueError, match="it has 1 MiB, more than 1: clear the outputs"):
        read(tmp_path / "x.ipynb")


@pytest.mark.parametrize("version", [3, 4])
def test_read_too_many_cells_raises(version, tmp_path, monkeypatch):
    monkeypatch.setattr(check_notebook, "CELLS", 5)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("x") for _ in range(6)])
    nbformat.write(notebook, tmp_path / "x.ipynb", version=version)
    with pytest.raises(ValueError, match=r"^it has 6 cells, more than 5$"):
        read(tmp_path / "x.ipynb")


def test_command_reports_a_complete_notebook(tmp_path):
    command = [sys.executable, ROOT / "grading/check_notebook.py", RELEASED]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (0, f"{RELEASED} carries all that grading needs.\n")


def test_command_writes_a_mended_notebook(run, tmp_path, released):
    nbformat.write(without_metadata(released), tmp_path / "scaling.ipynb")
    status, said = run(tmp_path / "scaling.ipynb")
    assert status == 1, said
    assert f"hand in {tmp_path}/scaling-mended.ipynb, under the name scaling.ipynb" in said
    assert run(tmp_path / "scaling-mended.ipynb", RELEASED)[0] == 0


@pytest.mark.parametrize("name", ["scaling (1).ipynb", "Copy of scaling.ipynb", "scaling-2.ipynb"])
def test_command_accepts_names_of_downloaded_copies(run, tmp_path, released, name):
    nbformat.write(released, tmp_path / name)
    status, said = run(tmp_path / name)
    assert status == 0, said


def test_command_reports_an_invalid_notebook(run, tmp_path):
    (tmp_path / "scaling.ipynb").write_text("{")
    status, said = run(tmp_path / "scaling.ipynb")
    assert status == 2
    assert "Copy your answers into a fresh copy" in said


def test_check_notebook_imports_only_nbformat():
    tree = ast.parse((ROOT / "grading/check_notebook.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported - set(sys.stdlib_module_names) == {"nbformat"}
