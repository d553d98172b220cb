"""The old names give what has moved, and warn."""

import pickle
import subprocess
import sys

import pytest
import torch

from lessons_lib import data, stories, tasks

MOVED = {
    "Batch": tasks.Batch,
    "InductionBatch": tasks.RepetitionBatch,
    "copy": tasks.copy,
    "induction": tasks.repetition,
    "modular_sums": tasks.modular_sums,
    "sorting": tasks.sorting,
    "stream": tasks.stream,
    "KINDS": stories.KINDS,
    "PRONOUNS": stories.PRONOUNS,
    "StoryBatch": stories.StoryBatch,
    "VERBS": stories.VERBS,
    "VOCABULARY": stories.VOCABULARY,
    "decode": stories.decode,
    "encode": stories.encode,
    "stories": stories.tell,
    "stories_entropy": stories.word_entropies,
}


@pytest.mark.parametrize(("name", "new"), MOVED.items(), ids=list(MOVED))
def test_an_old_name_is_the_new_thing_and_says_where_it_is(name, new):
    moved_to = rf"lessons_lib\.data\.{name} has moved to lessons_lib\.(tasks|stories)\."
    with pytest.warns(DeprecationWarning, match=moved_to) as told:
        assert getattr(data, name) is new
    where = str(told[0].message).removeprefix(f"lessons_lib.data.{name} has moved to lessons_lib.").split(";")[0]
    module, new_name = where.split(".")
    assert getattr({"tasks": tasks, "stories": stories}[module], new_name) is new


def test_who_uses_an_old_name_in_a_notebook_is_told_on_which_line():
    code = "from lessons_lib import data\n\ndata.copy"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "<string>:3: DeprecationWarning: lessons_lib.data.copy has moved to lessons_lib.tasks.copy" in done.stderr


def test_an_old_import_works():
    with pytest.warns(DeprecationWarning, match=r"lessons_lib\.tasks\.repetition"):
        from lessons_lib.data import induction
    settings = {"batch_size": 3, "n": 11, "n_symbols": 7, "min_period": 2, "max_period": 5}
    old, new = (task(torch.Generator().manual_seed(0), **settings) for task in (induction, tasks.repetition))
    assert torch.equal(old.inputs, new.inputs)


def test_a_batch_that_was_pickled_under_its_old_name_is_read():
    batch = tasks.copy(torch.Generator().manual_seed(0), batch_size=2, length=3, n_symbols=5)
    old = pickle.dumps(batch, protocol=0).replace(b"clessons_lib.tasks\n", b"clessons_lib.data\n")
    assert b"lessons_lib.data" in old
    with pytest.warns(DeprecationWarning, match="Batch has moved"):
        assert torch.equal(pickle.loads(old).inputs, batch.inputs)


def test_other_names_are_missing():
    with pytest.raises(AttributeError, match=r"module 'lessons_lib\.data' has no attribute 'parity'"):
        _ = data.parity
