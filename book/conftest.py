"""When nbval has run a notebook without fault, keep what it put out: the build shows that very run, not another."""

import copy

import pytest

try:
    import runs
    from dependencies import Library
    from ipykernel.ipkernel import IPythonKernel
    from nbval.kernel import RunningKernel
    from nbval.plugin import IPyNbCell
except ModuleNotFoundError:  # where the notebooks are run but no book is built
    runs = None


def pytest_sessionstart(session):
    """Run cells as the build does."""
    if runs is not None:
        RunningKernel.execute_cell_input = execute_as_a_reader_does


def execute_as_a_reader_does(kernel, source: str, allow_stdin: bool | None = None) -> str:
    """Run a cell with its source in the history, where IPython looks for the semicolon that silences a result.

    nbval leaves it out.
    """
    return kernel.kc.execute(source, allow_stdin=allow_stdin, stop_on_error=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Note what the outputs depend on before the first cell runs."""
    if runs is not None and isinstance(item, IPyNbCell) and "key" not in vars(item.parent):
        item.parent.key = Library(runs.ROOT).key(item.parent.nb)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Collect the outputs cell by cell, and keep the notebook after its last one."""
    report = yield
    if runs is not None and isinstance(item, IPyNbCell) and call.when == "call" and report.passed:
        outputs = vars(item.parent).setdefault("outputs_of_cells", {})
        outputs[item.cell_num] = item.test_outputs
        if len(outputs) == sum(cell.cell_type == "code" for cell in item.parent.nb.cells):
            ran = with_outputs(item.parent.nb, list(outputs.values()))
            runs.keep(item.path.relative_to(runs.ROOT), ran, item.parent.key)
    return report


def with_outputs(notebook, outputs: list):
    """The notebook as it would have been saved after this run."""
    ran = copy.deepcopy(notebook)
    ran.metadata.language_info = IPythonKernel.language_info
    code = [cell for cell in ran.cells if cell.cell_type == "code"]
    for count, (cell, put_out) in enumerate(zip(code, outputs, strict=True), 1):
        cell.outputs, cell.execution_count = put_out, count
    return ran
