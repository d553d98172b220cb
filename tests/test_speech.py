"""Vowels lie where their formants are, a seed decides what is said, and readings are scored by what was said."""

from itertools import pairwise

import pytest
import torch

from lessons_lib.speech import BANDS, FORMANTS, VOWELS, collapse, edit_distance, hear, speak, utterances


def drawn(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_frame_every_20_ms_and_a_label_for_each():
    said = speak([0, 5, 9], "man", drawn())
    assert said.bands.shape == (len(said.labels), BANDS)
    assert 3 * 5 <= len(said.labels) <= 3 * 10 + 1
    assert said.labels.unique_consecutive().tolist() == said.string == [0, 5, 9]


def test_a_tone_is_heard_in_the_band_where_it_lies():
    t = torch.arange(4000) / 8000
    heard = [hear((2 * torch.pi * hertz * t).sin()).mean(0).argmax().item() for hertz in (200, 1000, 3500)]
    assert heard == sorted(heard)
    assert len(set(heard)) == 3


def test_vowels_of_one_speaker_differ_where_their_second_formants_do():
    """That of iy is at 2.3 kHz, band 15, that of uw at 0.9 kHz, band 7."""
    front, back = (
        torch.stack([speak([VOWELS.index(vowel)], "man", drawn(seed)).bands.mean(0) for seed in range(5)]).mean(0)
        for vowel in ("iy", "uw")
    )
    assert (front - back)[15] > (front - back)[7] + 1


def test_a_seed_decides_and_pytorchs_own_generator_is_left_alone():
    state = torch.get_rng_state()
    first, same, other = (utterances(3, ["man", "child"], drawn(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a.bands, b.bands) and a.string == b.string for a, b in zip(first, same, strict=True))
    assert not torch.equal(first[0].bands[:10], other[0].bands[:10])
    assert torch.equal(torch.get_rng_state(), state)


def test_no_vowel_follows_itself():
    for said in utterances(30, ["woman"], drawn(3)):
        assert 2 <= len(said.string) <= 5
        assert all(a != b for a, b in pairwise(said.string))


def test_there_are_three_formants_of_each_vowel_in_order():
    for rows in FORMANTS.values():
        assert [len(row) for row in rows] == [len(VOWELS)] * 3
        assert all(low < high for lower, upper in pairwise(rows) for low, high in zip(lower, upper, strict=True))


@pytest.mark.parametrize(
    ("string", "speaker", "rule"),
    [([], "man", "string must hold"), ([10], "man", "string must hold"), ([1], "dog", "speaker must be one of")],
)
def test_what_nobody_can_say_is_refused(string, speaker, rule):
    with pytest.raises(ValueError, match=rule):
        speak(string, speaker, drawn())


def test_repeats_become_one_and_then_blanks_go():
    assert collapse([7, 1, 1, 7, 1, 2, 2, 7, 7], blank=7) == [1, 1, 2]
    assert collapse([7, 7], blank=7) == collapse([], blank=7) == []


@pytest.mark.parametrize(
    ("a", "b", "edits"), [("", "abc", 3), ("cat", "cat", 0), ("kitten", "sitting", 3), ("ab", "ba", 2)]
)
def test_the_edit_distance(a, b, edits):
    assert edit_distance(a, b) == edit_distance(b, a) == edits
