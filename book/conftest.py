"""Store the outputs of each notebook that nbval has run without an error, so that the build shows this run.

A notebook with a stored run is not run again: nothing has changed on which its outputs may depend
(``tools/dependencies.py``). ``make clean`` removes stored runs.
"""

import copy

import pytest

try:
    import runs
    from dependencies import Library
    from ipykernel.ipkernel import IPythonKernel
    from nbval.kernel import RunningKernel
    from nbval.plugin import IPyNbCell
except ModuleNotFoundError:  # an environment that runs the notebooks but does not build the book
    runs = None


def pytest_sessionstart(session):
    """Replace nbval's way of running cells by that of the build."""
    if runs is not None:
        RunningKernel.execute_cell_input = execute_with_history


def execute_with_history(kernel, source: str, allow_stdin: bool | None = None) -> str:
    """Run a cell and store its source in the history, which nbval does not.

    IPython looks there for a semicolon at the end, which suppresses the result.
    """
    return kernel.kc.execute(source, allow_stdin=allow_stdin, stop_on_error=False)


def pytest_collection_modifyitems(config, items):
    """Compute the notebooks' keys, and deselect the cells of notebooks that have a stored run."""
    if runs is None:
        return
    notebooks, library = {item.parent for item in items if isinstance(item, IPyNbCell)}, Library(runs.ROOT)
    for notebook in notebooks:
        notebook.key = library.key(notebook.nb)
    done = {each for each in notebooks if runs.stored_path(each.path.relative_to(runs.ROOT), each.key).exists()}
    config.hook.pytest_deselected(items=[item for item in items if item.parent in done])
    items[:] = [item for item in items if item.parent not in done]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Collect the outputs of each cell, and store the run after the notebook's last cell."""
    report = yield
    if runs is not None and isinstance(item, IPyNbCell) and call.when == "call" and report.passed:
        outputs = vars(item.parent).setdefault("outputs_of_cells", {})
        outputs[item.cell_num] = item.test_outputs
        if len(outputs) == sum(cell.cell_type == "code" for cell in item.parent.nb.cells):
            ran = with_outputs(item.parent.nb, list(outputs.values()))
            runs.keep(item.path.relative_to(runs.ROOT), ran, item.parent.key)
    return report


def with_outputs(notebook, outputs: list):
    """Return the notebook as it would have been saved after this run."""
    ran = copy.deepcopy(notebook)
    ran.metadata.language_info = IPythonKernel.language_info
    code = [cell for cell in ran.cells if cell.cell_type == "code"]
    for count, (cell, cell_outputs) in enumerate(zip(code, outputs, strict=True), 1):
        cell.outputs, cell.execution_count = cell_outputs, count
    return ran
