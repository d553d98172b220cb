"""Paths of the repository and the built site, for tests of the site."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "_build" / "html"
