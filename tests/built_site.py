"""Where the built site is, for the tests that look at it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "_build" / "html"
