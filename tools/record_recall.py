"""Write the script with the recorded recall accuracies that the pairs explorer shows.

``python tools/record_recall.py`` reads ``benchmarks/results/recall.json`` and writes
``lessons_lib/page/widgets/static/pairs_recall.js``. For each kind of layer the script has the size of its state after
the longest sequence, and its accuracy for each number of pairs, averaged over the seeds. The result is deterministic.
"""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "recall.json"
SCRIPT = ROOT / "lessons_lib" / "page" / "widgets" / "static" / "pairs_recall.js"
HEAD = "/** What layers of several kinds recalled, in recorded runs. Written by tools/record_recall.py. */\n"


def main() -> None:
    """Write the script."""
    SCRIPT.write_text(script(json.loads(RECORD.read_text(encoding="utf-8"))), encoding="utf-8")


def script(record: dict) -> str:
    """Return the script's text, given the recorded runs."""
    rows: dict[str, list[dict]] = {}
    for row in record["table"]:
        rows.setdefault(row["method"], []).append(row)
    carried = {
        "steps": record["steps"],
        "seeds": len(record["seeds"]),
        "pairs": record["pairs"],
        "kinds": [
            [kind, own[-1]["state"], [round(sum(row["accuracy"]) / len(row["accuracy"]), 2) for row in own]]
            for kind, own in rows.items()
        ],
    }
    return f"{HEAD}export const RECALL = {json.dumps(carried)};\n"


if __name__ == "__main__":
    main()
