"""The measurements of one part, on disk; they survive the end of the process."""

import json
import os
import time
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SAME = ("part", "device", "kernels", "tiles", "versions")  # a file is continued only if these agree


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically: at any moment the file holds the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(draft, path)


def read(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file, or None if the file is missing or invalid."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def reason(error: BaseException) -> str:
    """Return an exception as one line of text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:300]


class Record:
    """The file of one part: its rows, the items done, and the item that is being measured.

    An existing file is continued if kernels, device, versions and tiles are the same; otherwise it is renamed to
    ``PART.before.json``.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        found = read(path)
        if found is not None and any(found.get(key) != about.get(key) for key in SAME):
            os.replace(path, path.with_name(f"{path.stem}.before.json"))
            found = None
        empty = {"rates": {}, "running": None, "done": {}, "left_out": {}, "rows": []}
        self.content = about | empty if found is None else found
        self.content["left_out"] = {}  # items without time may be measured in this run
        self.save()

    @property
    def rows(self) -> list[Row]:
        """The rows in the order of their measurement."""
        return self.content["rows"]

    def has(self, item: str) -> bool:
        """Return whether the item has been measured or has failed."""
        return item in self.content["done"]

    def begin(self, item: str) -> None:
        """Save the name of the item that is being measured, in case the process dies."""
        self.content["running"] = {"item": item, "since": time.time()}
        self.save()

    def add(self, item: str, rows: list[Row], state: dict[str, Any] | None = None) -> None:
        """Save the rows of an item."""
        running = self.content["running"]
        took = round(time.time() - running["since"], 1) if running else None
        self.rows.extend({"item": item, **row} for row in rows)
        self.content["done"][item] = {"seconds": took, "state": state}
        self.content["running"] = None
        self.save()

    def rate(self, name: str, value: float) -> None:
        """Save one more measurement of a rate of the machine."""
        self.content["rates"].setdefault(name, []).append(value)
        self.save()

    def leave_out(self, item: str, why: str) -> None:
        """Save why an item was not measured; the next run tries again."""
        self.content["left_out"][item] = why
        self.save()

    def save(self) -> None:
        """Write the file."""
        write(self.path, self.content)


def give_up(path: Path, why: str) -> str | None:
    """Record the failure of the item that a dead process was measuring; return its name, or None without an item."""
    content = read(path)
    if content is None or content["running"] is None:
        return None
    item = content["running"]["item"]
    content["rows"].append({"item": item, "reason": why})
    content["done"][item] = {"seconds": round(time.time() - content["running"]["since"], 1), "state": None}
    content["running"] = None
    write(path, content)
    return item
