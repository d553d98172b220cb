"""What one part has found, on disk: whatever ends the process, what was measured before stays."""

import json
import os
import time
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SAME = ("part", "device", "kernels", "tiles", "versions")  # what must agree for a file to be gone on with


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file, so that at any moment the old content is there or the new, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(draft, path)


def read(path: Path) -> dict[str, Any] | None:
    """Return what a file holds; None if there is none, or nothing that can be read."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def reason(error: BaseException) -> str:
    """Say in one line what was raised."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:300]


class Record:
    """The file of one part: rows, which items they came from, and what is being measured.

    A file that is there already is gone on with if it is of the same kernels, device, versions and tiles; else it is
    kept beside as ``PART.before.json``.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        found = read(path)
        if found is not None and any(found.get(key) != about.get(key) for key in SAME):
            os.replace(path, path.with_name(f"{path.stem}.before.json"))
            found = None
        empty = {"rates": {}, "running": None, "done": {}, "left_out": {}, "rows": []}
        self.content = about | empty if found is None else found
        self.content["left_out"] = {}  # what the time did not suffice for may be measured today
        self.save()

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order of their measurement."""
        return self.content["rows"]

    def has(self, item: str) -> bool:
        """Whether the item has been measured, or has failed."""
        return item in self.content["done"]

    def begin(self, item: str) -> None:
        """Note what is being measured: a process that dies cannot say it any more."""
        self.content["running"] = {"item": item, "since": time.time()}
        self.save()

    def add(self, item: str, rows: list[Row], state: dict[str, Any] | None = None) -> None:
        """Keep what came of an item."""
        running = self.content["running"]
        took = round(time.time() - running["since"], 1) if running else None
        self.rows.extend({"item": item, **row} for row in rows)
        self.content["done"][item] = {"seconds": took, "state": state}
        self.content["running"] = None
        self.save()

    def rate(self, name: str, value: float) -> None:
        """Keep a figure of the machine itself, one more time."""
        self.content["rates"].setdefault(name, []).append(value)
        self.save()

    def leave_out(self, item: str, why: str) -> None:
        """Say why an item was not measured; next time it may be."""
        self.content["left_out"][item] = why
        self.save()

    def save(self) -> None:
        """Write the file."""
        write(self.path, self.content)


def give_up(path: Path, why: str) -> str | None:
    """Note that the item that a dead process was measuring has failed; return its name, None if there was none."""
    content = read(path)
    if content is None or content["running"] is None:
        return None
    item = content["running"]["item"]
    content["rows"].append({"item": item, "reason": why})
    content["done"][item] = {"seconds": round(time.time() - content["running"]["since"], 1), "state": None}
    content["running"] = None
    write(path, content)
    return item
