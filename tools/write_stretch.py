"""Write the script with the recorded losses that the explorer *stretch* shows, in hundredths of a nat.

``python tools/write_stretch.py`` reads ``benchmarks/results/stretching.json``, which ``benchmarks/stretching.py``
makes, and writes ``lessons_lib/page/widgets/static/stretch_losses.js``. It takes a second.
"""

import json
import math
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "stretching.json"
OUT = ROOT / "lessons_lib" / "page" / "widgets" / "static" / "stretch_losses.js"
FACTORS, SEEDS = (2, 4, 8), (0, 1, 2)
WAYS = "interpolation", "NTK", "YaRN"
TEXT = """/** Written by tools/write_stretch.py from benchmarks/results/stretching.json. */

/**
 * Losses in hundredths of a nat, three digits each. As it is: not slowed down, then three methods by three factors.
 * Practised: not slowed down, then three methods by the largest factor. Then a window. Of each, three seeds; of each
 * seed, five lengths.
 */
export const LOSSES = [
{losses}
];
"""
AS_IT_IS = ["RoPE", *(f"RoPE, {way} by {factor}, as it is" for way in WAYS for factor in FACTORS)]
PRACTISED = ["RoPE, not slowed, practised", *(f"RoPE, {way} by {FACTORS[-1]}, practised" for way in WAYS)]
LINES = [AS_IT_IS, PRACTISED, ["RoPE, window of 64"]]


def digits(loss: float) -> str:
    """Return a loss in hundredths of a nat, as three digits.

    Raises:
        ValueError: if the loss does not fit into three digits.

    >>> digits(1.234)
    '123'
    """
    hundredths = math.floor(100 * loss + 0.5)
    if not 0 <= hundredths < 1000:
        raise ValueError(f"a loss must be from 0 to 9.99 nats, got {loss}")
    return f"{hundredths:03}"


def script(runs: dict[str, list[float]]) -> str:
    """Return the script's text, given the losses of each run."""
    written = (
        "".join(digits(x) for name in names for seed in SEEDS for x in runs[f"{name}, seed {seed}"]) for names in LINES
    )
    return TEXT.replace("{losses}", "\n".join(f'  "{some}",' for some in written))


if __name__ == "__main__":
    OUT.write_text(script(json.loads(RECORD.read_text(encoding="utf-8"))["runs"]), encoding="utf-8")
