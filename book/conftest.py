"""When nbval has run a notebook without fault, keep what it put out: the build shows that very run, not another."""

import copy

import pytest

try:
    import build_book
    from ipykernel.ipkernel import IPythonKernel
    from nbval.kernel import RunningKernel
    from nbval.plugin import IPyNbCell
except ModuleNotFoundError:  # where the notebooks are run but no book is built
    build_book = None


def pytest_sessionstart(session):
    """Forget what was kept before a change of the library, once: not in each of xdist's processes."""
    if build_book is None:
        return
    RunningKernel.execute_cell_input = execute_as_a_reader_does
    if not hasattr(session.config, "workerinput"):
        build_book.forget_stale_outputs()


def execute_as_a_reader_does(kernel, source: str, allow_stdin: bool | None = None) -> str:
    """Run a cell with its source in the history, where IPython looks for the semicolon that silences a result.

    nbval leaves it out.
    """
    return kernel.kc.execute(source, allow_stdin=allow_stdin, stop_on_error=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Collect the outputs cell by cell, and keep the notebook after its last one."""
    report = yield
    if build_book is not None and isinstance(item, IPyNbCell) and call.when == "call" and report.passed:
        outputs = vars(item.parent).setdefault("outputs_of_cells", {})
        outputs[item.cell_num] = item.test_outputs
        if len(outputs) == sum(cell.cell_type == "code" for cell in item.parent.nb.cells):
            build_book.keep(item.path, with_outputs(item.parent.nb, list(outputs.values())))
    return report


def with_outputs(notebook, outputs: list):
    """The notebook as it would have been saved after this run."""
    ran = copy.deepcopy(notebook)
    ran.metadata.language_info = IPythonKernel.language_info
    code = [cell for cell in ran.cells if cell.cell_type == "code"]
    for count, (cell, put_out) in enumerate(zip(code, outputs, strict=True), 1):
        cell.outputs, cell.execution_count = put_out, count
    return ran
