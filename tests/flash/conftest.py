"""Where kernels are interpreted, in a process of its own, make Triton's interpreter faster."""

import importlib.util
import os

if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None:
    import fast_interpreter

    fast_interpreter.install()
