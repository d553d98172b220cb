"""Paths of the repository and the built site, for tests of the site."""

from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "_build" / "html"


@cache
def read(path: str) -> str:
    """Return a page of the built site by its path there."""
    return (HTML / path).read_text(encoding="utf-8")
