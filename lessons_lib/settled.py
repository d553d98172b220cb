"""Every function that PyTorch leaves to Intel's library, called once by one thread, so that no later call is wrong.

That library chooses its code for a function at the first call. Where several threads make that call at once, as those
of one large ``torch.exp`` do, one of them may get code for a lower precision, and its part of the result is off by as
much as 1e-4, once and silently [1]_. After a first call by a single thread there is nothing left to choose.

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
