"""A small speech recognition task: synthetic strings of vowels, log-mel spectrograms, CTC decoding, edit distance.

The voice is a pitch with its harmonics. The vocal tract amplifies the harmonics near its three resonances, the
formants, and the formant frequencies determine the vowel. The average formants and pitches of men, women and children
are those of Peterson and Barney, *Control Methods Used in a Study of the Vowels*, 1952, table II
(doi:10.1121/1.1906875).
"""

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import avg_pool1d, pad

VOWELS = ("iy", "ih", "eh", "ae", "ah", "aa", "ao", "uh", "uw", "er")
RATE = 8000  # samples per second
HOP, WINDOW = 160, 256  # samples between two frames, and in a frame
BANDS = 20  # mel bands of a frame

FORMANTS = {  # hertz: the first, second and third formant of each vowel
    "man": (
        (270, 390, 530, 660, 640, 730, 570, 440, 300, 490),
        (2290, 1990, 1840, 1720, 1190, 1090, 840, 1020, 870, 1350),
        (3010, 2550, 2480, 2410, 2390, 2440, 2410, 2240, 2240, 1690),
    ),
    "woman": (
        (310, 430, 610, 860, 760, 850, 590, 470, 370, 500),
        (2790, 2480, 2330, 2050, 1400, 1220, 920, 1160, 950, 1640),
        (3310, 3070, 2990, 2850, 2780, 2810, 2710, 2680, 2670, 1960),
    ),
    "child": (
        (370, 530, 690, 1010, 850, 1030, 680, 560, 430, 560),
        (3200, 2730, 2610, 2320, 1590, 1370, 1060, 1410, 1170, 1820),
        (3730, 3600, 3570, 3320, 3360, 3170, 3180, 3310, 3260, 2160),
    ),
}
PITCH = {"man": 130.0, "woman": 220.0, "child": 265.0}  # hertz, on average


class Utterance(NamedTuple):
    """An utterance: its log-mel spectrogram, the vowel of each frame and the string, as indices into ``VOWELS``."""

    bands: Float[Tensor, "frames bands"]
    labels: Int[Tensor, "frames"]
    string: list[int]


def synthesise(string: Sequence[int], speaker: str, generator: torch.Generator) -> Utterance:
    """Synthesise a string of vowels of 100 to 200 ms each, with transitions of 50 ms, and noise.

    The noise has a tenth of the standard deviation of the voice. The length of each vowel, the pitch, the size of the
    vocal tract (within 8 %) and the noise are random.

    ::

        >>> utterance = synthesise([0, 5, 9], "man", torch.Generator().manual_seed(0))
        >>> utterance.bands.shape[1], utterance.string
        (20, [0, 5, 9])

    Args:
        string: the vowels, as indices into ``VOWELS``.
        speaker: a key of ``FORMANTS``.
        generator: draws the random numbers.

    Raises:
        ValueError: if the string is empty or holds an invalid index, or the speaker is not a key of ``FORMANTS``.
    """
    if not string or not all(0 <= vowel < len(VOWELS) for vowel in string):
        raise ValueError(f"string must hold numbers from 0 to {len(VOWELS) - 1}, got {list(string)}")
    if speaker not in FORMANTS:
        raise ValueError(f"speaker must be one of {', '.join(FORMANTS)}, got {speaker!r}")
    lengths = torch.randint(5, 11, (len(string),), generator=generator) * HOP
    labels = torch.tensor(list(string)).repeat_interleave(lengths)
    throat = _uniform(0.92, 1.08, generator) * (1 + 0.02 * torch.randn(3, 1, generator=generator))
    peaks = torch.tensor(FORMANTS[speaker], dtype=torch.float32)[:, labels] * throat
    peaks = avg_pool1d(pad(peaks, (200, 199), "replicate"), 400, 1)
    pitch = PITCH[speaker] * _uniform(0.85, 1.15, generator)
    glide = torch.linspace(1, _uniform(0.8, 1.1, generator), len(labels))
    bands = log_mel_spectrogram(_voice_waveform(pitch * glide, peaks, generator))
    return Utterance(bands, labels[(HOP * torch.arange(len(bands))).clamp_max(len(labels) - 1)], list(string))


def sample_utterances(count: int, speakers: Sequence[str], generator: torch.Generator) -> list[Utterance]:
    """Sample utterances of two to five vowels, without equal neighbours, each from a random one of the speakers.

    ::

        >>> len(sample_utterances(3, ["man", "child"], torch.Generator().manual_seed(0)))
        3
    """
    samples = []
    for _ in range(count):
        length = int(torch.randint(2, 6, (1,), generator=generator))
        steps = torch.randint(1, len(VOWELS), (length,), generator=generator)
        speaker = speakers[int(torch.randint(len(speakers), (1,), generator=generator))]
        samples.append(synthesise((steps.cumsum(0) % len(VOWELS)).tolist(), speaker, generator))
    return samples


def log_mel_spectrogram(wave: Float[Tensor, "samples"]) -> Float[Tensor, "frames bands"]:
    """Return the log-mel spectrogram: the logarithm of the power in 20 mel bands, one frame every 20 ms.

    ::

        >>> log_mel_spectrogram(torch.randn(8000)).shape  # one second
        torch.Size([51, 20])
    """
    edges = 700 * torch.linspace(math.log1p(100 / 700), math.log1p(3900 / 700), BANDS + 2).expm1()
    bins, rise = torch.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None], edges.diff()
    triangles = torch.minimum((bins - edges[:-2]) / rise[:-1], (edges[2:] - bins) / rise[1:]).clamp_min(0)
    spectrum = torch.stft(wave, WINDOW, HOP, window=torch.hann_window(WINDOW), return_complex=True)
    return (spectrum.abs().square().T @ triangles + 1e-3).log()


def ctc_collapse(path: Sequence[int], blank: int) -> list[int]:
    """Collapse a CTC path of one label for each frame: merge repeated labels, then remove the blanks.

    ::

        >>> ctc_collapse([7, 1, 1, 7, 1, 2, 2, 7], blank=7)
        [1, 1, 2]

    Graves et al., *Connectionist Temporal Classification*, 2006, section 3.1.
    """
    changes = [label for i, label in enumerate(path) if i == 0 or label != path[i - 1]]
    return [label for label in changes if label != blank]


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Return the smallest number of insertions, deletions and substitutions that turn one sequence into the other.

    ::

        >>> edit_distance("kitten", "sitting")
        3
    """
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        corner, row[0] = row[0], i
        for j, b in enumerate(second, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (a != b))
    return row[-1]


# --- parts ----------------------------------------------------------------------------------------------------------


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * torch.rand((), generator=generator).item()


def _voice_waveform(
    pitch: Float[Tensor, "samples"], peaks: Float[Tensor, "3 samples"], generator: torch.Generator
) -> Float[Tensor, "samples"]:
    """Return harmonics of the pitch plus noise; the resonances set the amplitudes, which change every 5 ms."""
    order = torch.arange(1, int(3900 / pitch.max()) + 1)[:, None]
    frequency, formant = order * pitch[::40], peaks[:, None, ::40]
    damping = frequency * torch.tensor([80.0, 110.0, 160.0])[:, None, None]
    loudness = (formant**2 / ((formant**2 - frequency**2) ** 2 + damping**2).sqrt()).prod(0) / order
    turns = (pitch.double().cumsum(0) / RATE % 1).float()
    wave = loudness.repeat_interleave(40, 1)[:, : len(pitch)] * (2 * math.pi * order * turns).sin()
    voice = wave.sum(0)
    return voice / voice.std() + 0.1 * torch.randn(len(voice), generator=generator)
