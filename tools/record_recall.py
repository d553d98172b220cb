"""Write the script with the recorded recall accuracies that the recall explorer shows.

``python tools/record_recall.py`` reads ``benchmarks/results/recall.json`` and writes
``lessons_lib/page/widgets/static/recall_record.js``. For each kind of layer the script has the size of its state, and
its accuracy with each seed, for each number of pairs and after each number of training steps. A last row is the
expected accuracy of always answering the commonest value of the sequence. The result is deterministic.
"""

import json
from fractions import Fraction
from math import factorial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "recall.json"
SCRIPT = ROOT / "lessons_lib" / "page" / "widgets" / "static" / "recall_record.js"
HEAD = "/** What layers of several kinds recalled, in recorded runs. Written by tools/record_recall.py. */\n"


def main() -> None:
    """Write the script."""
    SCRIPT.write_text(script(json.loads(RECORD.read_text(encoding="utf-8"))), encoding="utf-8")


def script(record: dict) -> str:
    """Return the script's text, given the recorded runs."""
    kinds = list(dict.fromkeys(row["method"] for row in record["table"]))

    def of(kind: str, part: str, field: str) -> list:
        return [row[field] for row in record[part] if row["method"] == kind]

    carried = {
        "steps": [record["steps"], record["steps_longer"]],
        "seeds": len(record["seeds"]),
        "pairs": record["pairs"],
        "kinds": [
            {
                "kind": kind,
                "state": of(kind, "table", "state"),
                "shares": [of(kind, "table", "accuracy"), of(kind, "longer", "accuracy")],
            }
            for kind in kinds
        ],
        "commonest": [round(commonest(n_pairs), 2) for n_pairs in record["pairs"]],
    }
    return f"{HEAD}export const RECALL = {json.dumps(carried)};\n"


def commonest(n_pairs: int, n_values: int = 16) -> float:
    """Return the expected share of pairs that hold the commonest value, if each value is drawn uniformly.

    The number of ways to draw no value more than ``k`` times is ``n_pairs!`` times the coefficient of ``x ** n_pairs``
    in ``(sum of x ** i / i! for i up to k) ** n_values``.
    """
    total = n_values**n_pairs
    expected = Fraction(0)
    for k in range(n_pairs):  # the expectation is the sum of the probabilities of more than k
        ways = [Fraction(1)] + [Fraction(0)] * n_pairs
        for _ in range(n_values):
            ways = [sum(ways[j - i] / factorial(i) for i in range(min(j, k) + 1)) for j in range(n_pairs + 1)]
        expected += 1 - ways[n_pairs] * factorial(n_pairs) / total
    return float(expected / n_pairs)


if __name__ == "__main__":
    main()
