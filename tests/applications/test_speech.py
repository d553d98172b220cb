"""Tests of the vowel synthesiser, the log-mel spectrogram, CTC decoding and the edit distance."""

from itertools import pairwise

import pytest
import torch

from lessons_lib.applications.speech import (
    BANDS,
    FORMANTS,
    VOWELS,
    ctc_collapse,
    edit_distance,
    log_mel_spectrogram,
    sample_utterances,
    synthesise,
)


def generator_of(seed=0):
    return torch.Generator().manual_seed(seed)


def test_synthesise_returns_a_label_for_each_frame():
    utterance = synthesise([0, 5, 9], "man", generator_of())
    assert utterance.bands.shape == (len(utterance.labels), BANDS)
    assert 3 * 5 <= len(utterance.labels) <= 3 * 10 + 1
    assert utterance.labels.unique_consecutive().tolist() == utterance.string == [0, 5, 9]


def test_log_mel_spectrogram_higher_tones_are_in_higher_bands():
    t = torch.arange(4000) / 8000
    bands = [
        log_mel_spectrogram((2 * torch.pi * hertz * t).sin()).mean(0).argmax().item() for hertz in (200, 1000, 3500)
    ]
    assert bands == sorted(bands)
    assert len(set(bands)) == 3


def test_synthesise_vowels_differ_at_their_second_formants():
    """The second formant of iy is at 2.3 kHz (band 15), and of uw at 0.9 kHz (band 7)."""
    front, back = (
        torch.stack(
            [synthesise([VOWELS.index(vowel)], "man", generator_of(seed)).bands.mean(0) for seed in range(5)]
        ).mean(0)
        for vowel in ("iy", "uw")
    )
    assert (front - back)[15] > (front - back)[7] + 1


def test_sample_utterances_uses_its_generator_only():
    state = torch.get_rng_state()
    first, same, other = (sample_utterances(3, ["man", "child"], generator_of(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a.bands, b.bands) and a.string == b.string for a, b in zip(first, same, strict=True))
    assert not torch.equal(first[0].bands[:10], other[0].bands[:10])
    assert torch.equal(torch.get_rng_state(), state)


def test_sample_utterances_never_repeats_a_vowel():
    for utterance in sample_utterances(30, ["woman"], generator_of(3)):
        assert 2 <= len(utterance.string) <= 5
        assert all(a != b for a, b in pairwise(utterance.string))


def test_formants_are_three_increasing_frequencies_for_each_vowel():
    for rows in FORMANTS.values():
        assert [len(row) for row in rows] == [len(VOWELS)] * 3
        assert all(low < high for lower, upper in pairwise(rows) for low, high in zip(lower, upper, strict=True))


@pytest.mark.parametrize(
    ("string", "speaker", "rule"),
    [([], "man", "string must hold"), ([10], "man", "string must hold"), ([1], "dog", "speaker must be one of")],
)
def test_synthesise_invalid_arguments_raise(string, speaker, rule):
    with pytest.raises(ValueError, match=rule):
        synthesise(string, speaker, generator_of())


def test_ctc_collapse_merges_repeats_then_removes_blanks():
    assert ctc_collapse([7, 1, 1, 7, 1, 2, 2, 7, 7], blank=7) == [1, 1, 2]
    assert ctc_collapse([7, 7], blank=7) == ctc_collapse([], blank=7) == []


@pytest.mark.parametrize(
    ("a", "b", "edits"), [("", "abc", 3), ("cat", "cat", 0), ("kitten", "sitting", 3), ("ab", "ba", 2)]
)
def test_edit_distance_known_values(a, b, edits):
    assert edit_distance(a, b) == edit_distance(b, a) == edits
