"""Work around a race in MKL's first calls by calling each of its functions once, single-threaded, at import.

PyTorch computes these functions with Intel's MKL, which selects its kernel for a function at the first call. If several
threads make this first call at the same time, as in one large ``torch.exp``, one of them may get a kernel of lower
precision. Its part of the result is then wrong by up to 1e-4, once and silently [1]_. After a first call by a single
thread, the kernel is already selected.

.. [1] PyTorch's issue 188792, *MKL VML first-call kernel dispatch race*, 2026.
"""

import torch

FUNCTIONS = (
    *("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("erf", "erfc", "erfinv", "abs", "trunc"),
)

for _dtype in (torch.float32, torch.float64):
    for _name in FUNCTIONS:
        getattr(torch, _name)(torch.full((1,), 0.5, dtype=_dtype, device="cpu"))
