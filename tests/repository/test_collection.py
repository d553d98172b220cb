"""Tests of how conftest.py collects: xdist groups, names of files, and what a failed comparison prints."""

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest

remote = pytest.importorskip("xdist.remote")


@pytest.fixture
def hook(request):
    """The collection hook in tests/conftest.py."""
    plugin = request.config.pluginmanager.get_plugin(str(Path(__file__).parents[1] / "conftest.py"))
    return plugin.pytest_collection_modifyitems


@pytest.mark.xdist_group("pages")
@pytest.mark.parametrize(("loadgroup", "suffix"), [(True, "@pages"), (False, "")])
@pytest.mark.parametrize("size", ["360[px]"])
def test_test_id_ends_with_its_xdist_group(request, hook, loadgroup, suffix, size):
    item = copy.copy(request.node)
    name = item.nodeid.removesuffix("@pages")
    item._id = type(item._id).parse(name)
    config = SimpleNamespace(getvalue=lambda _: loadgroup, getoption=lambda *_: loadgroup)
    remote.WorkerInteractor.pytest_collection_modifyitems(None, config, [item])
    hook(config=config, items=[item])
    assert item.nodeid == name + suffix


def test_test_id_without_a_group_is_unchanged(request, hook):
    item = copy.copy(request.node)
    config = SimpleNamespace(getvalue=lambda _: True, getoption=lambda *_: True)
    remote.WorkerInteractor.pytest_collection_modifyitems(None, config, [item])
    hook(config=config, items=[item])
    assert item.nodeid == request.node.nodeid


def test_files_of_tests_have_different_names():
    """Pytest imports them by their names alone, and refuses a second file of the same name in one process."""
    names = [path.name for path in Path(__file__).parents[1].rglob("test_*.py")]
    assert len(names) > 100
    assert {name for name in names if names.count(name) > 1} == set()


def test_failed_comparison_of_lists_prints_no_full_difference():
    """Continuous integration sets ``CI``, with which pytest prints it: 20 minutes for two masks."""
    with pytest.raises(AssertionError) as caught:
        assert [[0]] == [[1]]
    assert "Full diff" not in str(caught.value)
