"""Rewrite the pages of a site after Sphinx has written them."""

from collections.abc import Callable
from pathlib import Path


def rewrite_pages(site: str | Path, change: Callable[[str], str]) -> None:
    """Replace the HTML of each page by what ``change`` makes of it; pages that stay the same are not written."""
    for page in Path(site).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        if (changed := change(text)) != text:
            page.write_text(changed, encoding="utf-8")
