"""``eval_mode`` restores the mode of each module, also after an error."""

import pytest
from torch import nn

from lessons_lib.foundations.eval_mode import eval_mode


@pytest.mark.parametrize("with_error", [False, True])
def test_eval_mode_restores_mode_of_each_module(with_error):
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.3)))
    model[1].eval()
    modes = [module.training for module in model.modules()]
    assert modes == [True, True, False, False]

    def evaluate():
        with eval_mode(model):
            assert not any(module.training for module in model.modules())
            if with_error:
                raise KeyError

    if with_error:
        with pytest.raises(KeyError):
            evaluate()
    else:
        evaluate()
    assert [module.training for module in model.modules()] == modes
