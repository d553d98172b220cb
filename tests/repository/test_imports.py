"""The library's core works without Jupyter and other optional packages; importing the package loads nothing large."""

import subprocess
import sys

from test_layers import CORE

DTYPES = ("float32", "float64")

ON_A_SERVER = """
import sys

class Absent:
    names = {"IPython", "ipykernel", "ipywidgets", "anywidget", "matplotlib", "traitlets", "transformers", "triton"}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run(code: str) -> str:
    finished = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_core_imports_without_optional_packages():
    run(
        ON_A_SERVER
        + "".join(f"import lessons_lib.{name}\n" for name in CORE)
        + "import torch\n"
        + "from lessons_lib.attention import masks\n"
        + "from lessons_lib.attention.attention import attention\n"
        + "x = torch.randn(5, 3)\n"
        + "assert attention(x, x, x, masks.causal(5)).shape == (5, 3)\n"
    )


def test_import_blocker_raises():
    code = "try:\n    import traitlets\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    assert run(ON_A_SERVER + code) == "No module named 'traitlets'\n"


def test_package_import_loads_no_heavy_modules():
    loaded = run("import sys, lessons_lib; print(*sys.modules, sep='\\n')").split()
    assert not {"torch", "numpy", "einops", "jaxtyping", "matplotlib", "IPython"} & set(loaded)


def test_mkl_functions_are_called_once_at_import():
    """PyTorch's issue 188792: where the first call is made by several threads, the result can be off by 1e-4."""
    called = run(
        "from torch.overrides import TorchFunctionMode\n"
        "class Watch(TorchFunctionMode):\n"
        "    def __torch_function__(self, function, types, args=(), kwargs=None):\n"
        "        if args and getattr(args[0], 'shape', None) == (1,):\n"
        "            print(function.__name__, args[0].dtype)\n"
        "        return function(*args, **kwargs or {})\n"
        "with Watch():\n"
        "    import lessons_lib.attention.attention\n"
    ).splitlines()
    wanted = {f"{name} torch.{dtype}" for name in ("exp", "log", "sqrt", "tanh", "sin", "erf") for dtype in DTYPES}
    assert wanted <= set(called)
