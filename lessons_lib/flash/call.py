"""A call of ``flash_attention`` with all its arguments checked: what the choice of a backend looks at."""

from typing import NamedTuple

from torch import Tensor

from lessons_lib.attention.attention import check_bias, check_options
from lessons_lib.attention.rules import Rule
from lessons_lib.flash.band import KernelBand, kernel_band
from lessons_lib.flash.score_mods import Scores
from lessons_lib.flash.validation import (
    check_cache_lengths,
    check_inputs,
    check_slopes_of_sequences,
    combine_masks,
    read_spans,
)
from lessons_lib.foundations.validation import promote_half


class Call(NamedTuple):
    """The arguments beside queries, keys and values."""

    rule: Rule  # the mask and the options is_causal, window and key_lengths as one rule
    band: tuple[KernelBand, Tensor | None] | None  # the rule as a band with key lengths, if it has this form
    scores: Scores
    bias: Tensor | None
    dropout_p: float
    cache_lengths: Tensor | None
    cache_starts: Tensor | None
    equal_widths: bool  # whether values are as wide as keys
    return_lse: bool

    @classmethod
    def checked(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Rule | Tensor | None,
        *,
        is_causal: bool,
        window: int | None,
        scale: float | None,
        key_lengths: Tensor | None,
        softcap: float | None,
        alibi_slopes: Tensor | None,
        sinks: Tensor | None,
        bias: Tensor | None,
        dropout_p: float,
        cache_lengths: Tensor | None,
        cache_starts: Tensor | None,
        backend: str,
        return_lse: bool,
    ) -> "Call":
        """Return the call.

        Raises:
            ValueError: as :func:`lessons_lib.flash.interface.flash_attention`.
        """
        check_inputs(q, k, v, scale, key_lengths, backend)
        rule = combine_masks(q, k, mask, is_causal=is_causal, window=window, key_lengths=key_lengths)
        if alibi_slopes is not None and alibi_slopes.ndim == 2:
            check_slopes_of_sequences(q, alibi_slopes)
            scores = Scores.checked(q, k, scale, softcap, None, sinks)
            scores = Scores(scores.scale, softcap, alibi_slopes, sinks)
        else:
            scores = Scores.checked(q, k, scale, softcap, alibi_slopes, sinks)
        if bias is not None:
            check_bias(bias, q, promote_half(q.new_empty(())).expand(*q.shape[:3], k.shape[2]))
        check_options(scale, dropout_p)
        if cache_lengths is not None or cache_starts is not None:
            check_cache_lengths(cache_lengths, cache_starts, len(q), k.shape[2], rule, key_lengths)
        band = kernel_band(rule, q.shape[0], q.shape[2], k.shape[2])
        equal_widths = v.shape[-1] == k.shape[-1]
        return cls(rule, band, scores, bias, dropout_p, cache_lengths, cache_starts, equal_widths, return_lse)

    def spans(self, k: Tensor) -> list[tuple[int, int]]:
        """Return the first key of each sequence and the end of its keys; the host reads them."""
        return read_spans(self.cache_starts, self.cache_lengths, len(k), k.shape[2])

    @property
    def for_tiled_only(self) -> list[str]:
        """The names of what only the backend ``tiled`` can compute, or ``torch`` in memory over ``n x m``."""
        slopes = self.scores.alibi_slopes
        given = {
            "values of another width than the keys": not self.equal_widths,
            "bias": self.bias is not None,
            "dropout": self.dropout_p > 0,
            "alibi_slopes of each sequence": slopes is not None and slopes.ndim == 2,
            "cache_starts": self.cache_starts is not None,
        }
        return [name for name, is_given in given.items() if is_given]
