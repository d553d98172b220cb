"""Where the built site is, for the tests that look at it, and what they watch for on a page."""

from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "_build" / "html"


@dataclass
class Seen:
    """What a page asked for and complained about."""

    external: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def watch(self, page, allowed: str) -> None:
        page.on(
            "request", lambda r: None if r.url.startswith((allowed, "data:", "blob:")) else self.external.append(r.url)
        )
        page.on("response", lambda r: self.failed.append(f"{r.status} {r.url}") if r.status >= 400 else None)
        page.on("requestfailed", lambda r: self.failed.append(r.url))
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
