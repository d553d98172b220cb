"""Tests of the drawings in ``markov``: steps of a walker, causal walks, paths of content."""

import re

import pytest
import torch
from drawn import words

from lessons_lib.attention.masks import causal
from lessons_lib.attention.softmax import softmax
from lessons_lib.page import drawings

CHAIN = torch.tensor([[0.1, 0.7, 0.2], [0.2, 0.2, 0.6], [0.7, 0.125, 0.175]], dtype=torch.float64)
CYCLE = torch.eye(3).roll(1, dims=1)
RANDOM = softmax(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)), causal(6))
UNIFORM = softmax(torch.zeros(5, 5, dtype=torch.float64), causal(5))
READS = [[0, 0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6, 4]]
DRAWINGS = {
    "markov_chain": drawings.markov_chain(CHAIN),
    "markov_chain cycle": drawings.markov_chain(CYCLE),
    "causal_walk": drawings.causal_walk(UNIFORM),
    "causal_walk of six tokens": drawings.causal_walk(RANDOM, 8),
    "content_path": drawings.content_path(READS, 7),
    "content_path of ten positions": drawings.content_path([list(range(10))] * 4, 9),
}


def widths(drawing, role):
    """Return the widths of a drawing's weighted lines, in drawing order."""
    found = re.findall(rf'class="{role}" style="stroke-width:([\d.]+)', drawing.to_html())
    return [float(width) for width in found]


def test_markov_chain_arrows_are_as_thick_as_the_weights():
    drawing = DRAWINGS["markov_chain"]
    by_row = [[CHAIN[i, i], *(CHAIN[i, j] for j in range(3) if j != i)] for i in range(3)]  # the loop comes first
    assert widths(drawing, "query") == pytest.approx([6 * float(w) for row in by_row for w in row], abs=0.06)
    assert [text for text in words(drawing) if "." in text] == [f"{w:.3g}" for w in CHAIN.flatten().tolist()]
    assert "from token 2 0.7 to token 0, 0.125 to token 1, 0.175 to token 2" in drawing.alt


def test_markov_chain_zero_weights_have_no_arrow():
    assert widths(DRAWINGS["markov_chain cycle"], "query") == [6, 6, 6]


def test_causal_walk_shows_the_distribution_after_each_layer():
    drawing = drawings.causal_walk(UNIFORM, 3)
    rows = [torch.linalg.matrix_power(UNIFORM, t)[-1].tolist() for t in range(4)]
    shares = [text for text in words(drawing) if text.endswith("%")]
    assert shares == [f"{100 * p:.0f}%" for row in rows for p in row]
    assert f"its mass on token 0 is {', '.join(f'{row[0]:.2f}' for row in rows)}." in drawing.alt
    assert {"start", "1 layer", "2 layers", "3 layers"} <= set(words(drawing))


def test_causal_walk_arrows_lead_to_earlier_tokens_only():
    arcs = re.findall(r'd="M([\d.]+) \S+Q\S+ \S+ ([\d.]+) \S+" class="query"', DRAWINGS["causal_walk"].to_html())
    assert len(arcs) == 10
    assert all(float(tip) < float(start) for start, tip in arcs)


@pytest.mark.parametrize(("output", "route"), [(7, [4, 3]), (5, [5, 4]), (0, [0, 0])])
def test_content_path_leads_back_to_the_input(output, route):
    drawing = drawings.content_path(READS, output)
    assert f"The path of output {output} is drawn thick: it leads through position {route[0]} to input {route[1]}." in (
        drawing.alt
    )
    assert widths(drawing, "value") == [3, 3]
    assert drawing.to_html().count('class="value filled"') == 3


def test_content_path_of_one_layer_names_the_input_alone():
    drawing = drawings.content_path([[1, 1, 0]], 2)
    assert drawing.alt.endswith("it leads to input 0.")
    assert words(drawing).count("inputs") == words(drawing).count("outputs") == 1


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        (torch.eye(4), "square matrix of 3 rows"),
        (torch.full((3, 4), 0.25), "square matrix of 3 rows"),
        (torch.eye(3) / 2, "row-stochastic"),
    ],
)
def test_markov_chain_invalid_weights_raise(weights, complaint):
    with pytest.raises(ValueError, match=complaint):
        drawings.markov_chain(weights)


@pytest.mark.parametrize(
    ("weights", "n_layers", "complaint"),
    [
        (torch.full((3, 3), 1 / 3), 4, "must be causal"),
        (torch.eye(2), 4, "of 3 to 6 rows"),
        (torch.eye(7), 4, "of 3 to 6 rows"),
        (torch.eye(3), 0, "n_layers must be from 1 to 8, got 0"),
        (torch.eye(3), 9, "n_layers must be from 1 to 8, got 9"),
    ],
)
def test_causal_walk_invalid_arguments_raise(weights, n_layers, complaint):
    with pytest.raises(ValueError, match=complaint):
        drawings.causal_walk(weights, n_layers)


@pytest.mark.parametrize(
    ("reads", "output", "complaint"),
    [
        ([], 0, "one to four layers"),
        ([[0, 0], [0, 0, 1]], 0, "the same 2 to 10 positions"),
        ([[0]], 0, "2 to 10 positions"),
        ([list(range(11))], 0, "2 to 10 positions"),
        ([[0, 1]] * 5, 0, "one to four layers"),
        ([[0, 2]], 0, "positions must be from 0 to 1"),
        ([[0, 1]], 2, "positions must be from 0 to 1"),
    ],
)
def test_content_path_invalid_arguments_raise(reads, output, complaint):
    with pytest.raises(ValueError, match=complaint):
        drawings.content_path(reads, output)
