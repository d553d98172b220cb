"""The core works on a machine without Jupyter, and importing the package alone costs nothing."""

import subprocess
import sys

from test_layers import CORE, EXISTING

WITHOUT_JUPYTER = """
import sys

class NoJupyter:
    absent = {"IPython", "ipykernel", "ipywidgets", "anywidget", "matplotlib", "traitlets"}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoJupyter())
"""


def run(code: str) -> str:
    finished = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_core_needs_no_jupyter():
    run(
        WITHOUT_JUPYTER
        + "".join(f"import lessons_lib.{name}\n" for name in CORE if name in EXISTING)
        + "import torch\n"
        + "from lessons_lib import masks\n"
        + "from lessons_lib.attention import attention\n"
        + "x = torch.randn(5, 3)\n"
        + "assert attention(x, x, x, masks.causal(5)).shape == (5, 3)\n"
    )


def test_the_blocker_blocks():
    code = "try:\n    import traitlets\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    assert run(WITHOUT_JUPYTER + code) == "No module named 'traitlets'\n"


def test_importing_the_package_alone_imports_nothing_heavy():
    loaded = run("import sys, lessons_lib; print(*sys.modules, sep='\\n')").split()
    assert not {"torch", "numpy", "einops", "jaxtyping", "matplotlib", "IPython"} & set(loaded)
