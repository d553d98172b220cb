"""Tests of one group share a process, so that what they look at is opened once."""

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest

remote = pytest.importorskip("xdist.remote")


@pytest.fixture
def hook(request):
    """What this folder's conftest does with the tests that were collected."""
    plugin = request.config.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))
    return plugin.pytest_collection_modifyitems


@pytest.mark.xdist_group("pages")
@pytest.mark.parametrize(("loadgroup", "suffix"), [(True, "@pages"), (False, "")])
@pytest.mark.parametrize("size", ["360[px]"])
def test_the_name_of_a_test_ends_in_its_group_as_xdist_wants_it(request, hook, loadgroup, suffix, size):
    item = copy.copy(request.node)
    name = item.nodeid.removesuffix("@pages")
    item._id = type(item._id).parse(name)
    config = SimpleNamespace(getvalue=lambda _: loadgroup, getoption=lambda *_: loadgroup)
    remote.WorkerInteractor.pytest_collection_modifyitems(None, config, [item])
    hook(config=config, items=[item])
    assert item.nodeid == name + suffix


def test_a_test_of_no_group_keeps_its_name(request, hook):
    item = copy.copy(request.node)
    config = SimpleNamespace(getvalue=lambda _: True, getoption=lambda *_: True)
    remote.WorkerInteractor.pytest_collection_modifyitems(None, config, [item])
    hook(config=config, items=[item])
    assert item.nodeid == request.node.nodeid
