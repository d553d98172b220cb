"""Tests of the record on the models that name two tokens, whose runs use the chapter's own code."""

import json

import torch

from benchmarks import two_tokens

RECORD = json.loads((two_tokens.ROOT / "benchmarks" / "results" / "two-tokens.json").read_text(encoding="utf-8"))


def test_record_has_every_run_of_the_command():
    assert list(RECORD["runs"]) == list(two_tokens.wanted())
    for name, (_, weights_from, *_) in two_tokens.wanted().items():
        assert len(RECORD["runs"][name]) == (len(RECORD["numbers"]) if weights_from == "position token" else 5)
    assert all(0 <= share <= 1 for found in RECORD["runs"].values() for share in found[:4] + found[5:])


def test_chapter_code_trains_each_kind_of_model():
    code = two_tokens.cells()
    for heads, weights_from, numbers in ((1, "position token", 9), (2, "position", 5)):
        found = two_tokens.run(code, heads, weights_from, steps=21, rate=0.01, seed=0)
        assert len(found) == numbers
        assert (found[4] == 0) == (weights_from == "position"), "weights from positions do not depend on the tokens"


def test_with_weights_for_replaces_weights_of_one_part_of_the_values():
    code = two_tokens.cells()
    torch.manual_seed(0)
    x, model = torch.randint(16, (5, 16)), code["TwoBack"](1, "position token").requires_grad_(False)
    weights = torch.rand(1, 1, 16, 16)
    plain, anew = model(x), model(x, weights)
    parts = [two_tokens.with_weights_for(model, part, weights)(x) for part in ("position", "token")]
    for k in range(2):
        torch.testing.assert_close(parts[0][k] + parts[1][k], plain[k] + anew[k])
        assert not torch.allclose(parts[0][k], plain[k])
        assert not torch.allclose(parts[1][k], plain[k])
    assert model.values_from == "position token"
