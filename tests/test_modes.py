"""Evaluation mode ends as it was found, part by part, and whatever happens."""

import pytest
from torch import nn

from lessons_lib.modes import evaluating


@pytest.mark.parametrize("with_error", [False, True])
def test_every_part_is_in_evaluation_and_comes_back(with_error):
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.3)))
    model[1].eval()
    modes = [part.training for part in model.modules()]
    assert modes == [True, True, False, False]

    def look():
        with evaluating(model):
            assert not any(part.training for part in model.modules())
            if with_error:
                raise KeyError

    if with_error:
        with pytest.raises(KeyError):
            look()
    else:
        look()
    assert [part.training for part in model.modules()] == modes
