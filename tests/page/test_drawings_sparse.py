"""Tests of the drawings in ``sparse``: routes through a global token, kept keys, mixed keys, updates of a state."""

import re

import pytest
import torch
from drawn import words
from torch.nn import functional

from lessons_lib.attention.softmax import softmax
from lessons_lib.efficient import decayed_attention, delta_rule
from lessons_lib.page import drawings

DRAWINGS = {
    "global_token_routes": drawings.global_token_routes(),
    "global_token_routes of seven": drawings.global_token_routes(7),
    "selected_keys": drawings.selected_keys([2.5, 0.0, 0.5, 3.2, 0.0, 1.0, 0.2, 0.6], 3),
    "selected_keys of ten": drawings.selected_keys([0.0, 1, 2, 3, 4, 3, 2, 1, 0, -1], 9),
    "key_mixtures": drawings.key_mixtures(),
    "key_mixtures of ten": drawings.key_mixtures(10, 4),
    "state_updates": drawings.state_updates(),
    "state_updates without decay": drawings.state_updates(1.0),
}


def test_global_token_routes_fills_what_two_layers_reach():
    for n in (5, 6, 7):
        circles = re.findall(r"<circle [^>]*>", drawings.global_token_routes(n).to_html())
        near = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= 1
        near[0], near[:, 0] = True, True
        for panel, mask in enumerate((near, near & torch.ones(n, n).tril().bool())):
            reached = [torch.arange(n) == 1]
            for _ in range(2):
                reached.append((mask & reached[-1]).any(-1))
            wanted = [bool(x) for row in reversed(reached) for x in row]
            found = ["key filled" in circle for circle in circles[3 * n * panel : 3 * n * (panel + 1)]]
            assert found == wanted, (n, panel)


def test_selected_keys_shows_the_share_of_the_weight_that_is_kept():
    scores = [2.5, 0.0, 0.5, 3.2, 0.0, 1.0, 0.2, 0.6]
    drawing, weights = drawings.selected_keys(scores, 3), softmax(torch.tensor(scores).double())
    near, strong = weights[-3:].sum(), weights.topk(3).values.sum()
    assert [text for text in words(drawing) if "%" in text] == ["100 %", f"{100 * near:.0f} %", f"{100 * strong:.0f} %"]
    assert drawing.to_html().count('class="key filled"') == 8 + 3 + 3


def test_key_mixtures_joins_every_key_with_every_mixture():
    html = drawings.key_mixtures(10, 4).to_html()
    assert html.count('class="fine"') == 9 * 4
    assert html.count('<path class="query"') + len(re.findall(r'<path d="[^"]*" class="query"/>', html)) == 4


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.25, 1.0])
def test_state_updates_returns_what_the_library_returns(decay):
    key = functional.normalize(torch.randn(1, 8, generator=torch.Generator().manual_seed(0)), dim=-1).expand(2, 8)
    value = torch.eye(2)
    log_decay = torch.full((2,), max(decay, 1e-30)).log()
    outputs = [
        decayed_attention(key, key, value)[0],
        decayed_attention(key, key, value, log_decay=log_decay)[0],
        delta_rule(key, key, value, torch.ones(2))[0],
    ]
    said = [
        float(text.split()[0]) for text in words(drawings.state_updates(decay)) if re.fullmatch(r"[\d.]+ v.*", text)
    ]
    wanted = torch.cat([torch.cat([torch.tensor([1.0, 0.0]), output[-1]]) for output in outputs])
    torch.testing.assert_close(torch.tensor(said), wanted, atol=1e-5, rtol=0)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: drawings.global_token_routes(4), "n must be between 5 and 7, got 4"),
        (lambda: drawings.selected_keys([1.0, 2.0, 3.0], 1), "scores must be 4 to 10"),
        (lambda: drawings.selected_keys([1.0] * 5, 5), "got 5 and 5"),
        (lambda: drawings.key_mixtures(3), "n must be between 4 and 10"),
        (lambda: drawings.key_mixtures(8, 5), "r between 2 and 4"),
        (lambda: drawings.state_updates(1.5), "decay must be between 0 and 1, got 1.5"),
    ],
)
def test_invalid_arguments_raise(call, says):
    with pytest.raises(ValueError, match=says):
        call()
