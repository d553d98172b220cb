"""Take the README's screenshot: a chapter with an explorer whose slider has been moved."""

from pathlib import Path

from browsing import launch, serve
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "book" / "images" / "readme.png"


def main() -> None:
    """Open the chapter, move the slider, and save a screenshot."""
    with sync_playwright() as playwright, serve(ROOT / "_build" / "html") as address:
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.goto(f"{address}/book/attention/scaling.html")
        page.wait_for_load_state("networkidle")
        slider = page.locator("div.explorer input[type=range]").first
        for _ in range(3):
            slider.press("ArrowRight")
        page.evaluate("document.activeElement.blur()")
        page.locator("div.explorer").first.evaluate("e => scrollTo(0, e.getBoundingClientRect().top + scrollY - 120)")
        TARGET.parent.mkdir(exist_ok=True)
        page.screenshot(path=TARGET)
        browser.close()
    print(TARGET.relative_to(ROOT))


if __name__ == "__main__":
    main()
