"""Make a slide deck of each chapter from the built site: _build/slides/NAME.html, with reveal.js and speaker notes.

A deck has the chapter's box, its explorer, the figures of the core with their captions, the answer of each section, two
of the chapter's guesses as questions for the room, *Remember* and the exercises. The sections' text is in the speaker
notes (press S). The folder needs neither network nor server; copy it as a whole.
"""

import copy
import re
import shutil
import sys
from importlib.resources import files
from pathlib import Path

import yaml
from bs4 import BeautifulSoup, Tag
from runs import BUILD, ROOT

REVEAL = "sphinx_revealjs"  # the package that brings reveal.js
VENDOR = "_static/revealjs"
TEMPLATES = ROOT / "book" / "_ext" / "templates"
EXPLORERS = "explorers"
STATIC = ("fonts", "parts", "typeface.css", "explorer_page.css", "book.js", "explorer_page.js", "favicon.svg")
MATHJAX = "vendor/mathjax/output"
AFTER_CORE = ("remember", "exercises", "going-deeper", "claims-you-will-meet", "sources")
QUESTIONS = 2  # for the room
# An explorer's page tells the deck how high the explorer is: a deck that is opened as a file may not look into a frame.
SAY_HEIGHT = """<script>
  const card = document.querySelector(".explorer");
  new ResizeObserver(() => parent.postMessage({ explorerHeight: card.offsetHeight }, "*")).observe(card);
</script>"""
LONG = 60  # words beside a figure, from which they are smaller


class Slide:
    """One slide: its heading and body as HTML, and its speaker notes as a list of HTML blocks."""

    def __init__(self, heading: str, body: str, notes: list[str], kind: str) -> None:
        self.heading, self.body, self.notes, self.kind = heading, body, notes, kind

    def to_html(self) -> str:
        """Return the slide as a section of reveal.js."""
        level = "h1" if self.kind == "title" else "h2"
        notes = f'\n<aside class="notes">{"".join(self.notes)}</aside>' if self.notes else ""
        return f'<section class="{self.kind}">\n<{level}>{self.heading}</{level}>\n{self.body}{notes}\n</section>'


# --- what a page contains -------------------------------------------------------------------------------------------


def first(element: Tag, selector: str) -> Tag:
    """Return the first element inside that a CSS selector matches.

    Raises:
        ValueError: if there is none.
    """
    found = element.select_one(selector)
    if found is None:
        raise ValueError(f"expected an element {selector} in <{element.name}>, found none")
    return found


def article_of(page: str) -> Tag:
    """Return the outermost section of a page, given its HTML."""
    return first(BeautifulSoup(page, "html.parser"), "article section")


def plain(element: Tag) -> Tag:
    """Return a copy without links, anchors, numbers of sections and identifiers."""
    element = copy.copy(element)
    for anchor in element.select(".headerlink, .section-number"):
        anchor.decompose()
    for link in element.find_all("a"):
        link.unwrap()
    for one in [element, *element.find_all(id=True)]:
        if one.name != "figure":
            one.attrs.pop("id", None)
    return element


def for_notes(element: Tag) -> str:
    """Return a block for the speaker notes, where formulas are MathML: the notes' window has no style for MathJax."""
    element = plain(element)
    for formula in element.find_all("mjx-container"):
        formula.replace_with(copy.copy(first(formula, "math")))
    return str(element)


def heading_of(section: Tag) -> str:
    """Return the content of a section's heading as HTML."""
    return plain(first(section, "h1, h2")).decode_contents().strip()


def core_of(article: Tag) -> list[Tag]:
    """Return the sections of the core of a chapter."""
    return [one for one in article.find_all("section", recursive=False) if one.get("id") not in AFTER_CORE]


def asked(cell: Tag) -> Tag | None:
    """Return the question of a guess in a cell, or ``None``."""
    return cell.select_one(".guess .x-still")


def question_text(guess: Tag) -> str:
    """Return the question of a guess, without *Guess first.*"""
    return first(guess, "p").get_text().removeprefix("Guess first.").strip()


def answers_of(article: Tag) -> dict[str, str]:
    """Return the answer of each guess as HTML by its question."""
    found = {}
    for truth in article.select("p.g-truth"):
        said = truth.get_text()
        answer = first(truth, "b").get_text()
        question, _, note = said.rpartition(answer)
        found[question.strip()] = f"<strong>{answer}</strong> {note.strip()}".strip()
    return found


def for_the_room(core: list[Tag], answers: dict[str, str]) -> set[str]:
    """Return the first guesses of the core, each of another section if possible, and numbers and choices first."""
    found = []
    for at, section in enumerate(core):
        for guess in section.select(".guess .x-still"):
            question, drawn = question_text(guess), "Draw it:" in guess.get_text()
            if question in answers:
                found.append((drawn, at, question))
    first = [one for i, one in enumerate(found) if one[1] not in {other[1] for other in found[:i]}]
    chosen = sorted(first)[:QUESTIONS]
    chosen += [one for one in sorted(found) if one not in chosen][: QUESTIONS - len(chosen)]
    return {question for _, _, question in chosen}


# --- slides ---------------------------------------------------------------------------------------------------------


def deck(page: str, title: str) -> list[Slide]:
    """Return the slides of a chapter, given the HTML of its page and the title of the book."""
    article = article_of(page)
    core, answers = core_of(article), answers_of(article)
    asked_of_room = for_the_room(core, answers)
    slides = [
        Slide(
            heading_of(article),
            f"<p>A chapter of <cite>{title}</cite></p>",
            ["<p>N and P, or the arrow keys: next and previous. S: speaker notes. O: overview. F: full screen.</p>"],
            "title",
        ),
        in_short(article),
        *explorer(article),
    ]
    for section in core:
        slides += slides_of(section, asked_of_room, answers)
    return [*slides, *remember(article), exercises(article, title)]


def in_short(article: Tag) -> Slide:
    """Return the slide of the box *In short*."""
    box = plain(first(article, ".in-short"))
    first(box, ".admonition-title").decompose()
    return Slide("In short", f"<div>{box.decode_contents()}</div>", [], "in-short")


def explorer(article: Tag) -> list[Slide]:
    """Return the slide of the chapter's first explorer, which is live, or no slide if there is none."""
    shown = article.select_one(".explorer")
    if shown is None:
        return []
    name = next(kind for kind in shown["class"] if kind.startswith("x-")).removeprefix("x-")
    heading = first(shown, ".x-question").decode_contents()
    words = [p for p in article.find_all("p") if p.get_text().startswith("Try it:")][:1]
    frame = f'<iframe src="{EXPLORERS}/{name}.html?embed" title="Explorer: {heading}"></iframe>'
    return [Slide(heading, frame, [for_notes(p) for p in words], "explorer")]


def slides_of(section: Tag, asked_of_room: set[str], answers: dict[str, str]) -> list[Slide]:
    """Return the slides of a section of the core: its questions for the room, its figures and its answer."""
    slides: list[Slide] = []
    heading, notes, so = heading_of(section), [], None
    for part in section.find_all(recursive=False):
        figure = part.find("figure")
        if figure:
            slides.append(Slide(heading, figure_html(figure), notes, "figure"))
            notes = []
        elif (guess := asked(part)) and question_text(guess) in asked_of_room:
            slides.append(question(guess, answers[question_text(guess)], notes))
            notes = []
        elif part.css.match(".so"):
            so = part
            notes.append(for_notes(part))
        elif part.css.match("p, ul, ol, .math"):
            notes.append(for_notes(part))
    formula = shown_formula(section, so)
    so = plain(so).decode_contents().replace("<strong>So:</strong>", "", 1).strip() if so else ""
    so = f'<p class="so">{so[:1].upper()}{so[1:]}</p>' if so else ""
    figures = [slide for slide in slides if slide.kind == "figure"]
    if not figures:
        slides.append(Slide(heading, f"{formula}\n{so}", notes, "claim"))
        return slides
    figures[-1].body += so
    slides[-1].notes += notes
    for slide in figures:
        words = len(first(BeautifulSoup(slide.body, "html.parser"), ".caption-text").get_text().split())
        words += len(BeautifulSoup(so, "html.parser").get_text().split()) * (slide is figures[-1])
        slide.kind += " long" * (words > LONG)
    return slides


def shown_formula(section: Tag, so: Tag | None) -> str:
    """Return the formula that a section's answer names, else the section's first one, or an empty string."""
    formulas = section.find_all("div", class_="math", recursive=False)
    named = {str(link["href"]).removeprefix("#") for link in so.find_all("a")} if so else set()
    chosen = [one for one in formulas if one.get("id") in named] or formulas
    return str(plain(chosen[0])) if chosen else ""


def figure_html(figure: Tag) -> str:
    """Return a figure with its caption; its picture loads at once, and the style of drawings is in the head."""
    figure = plain(figure)
    for image in figure.find_all("img"):
        image["src"] = f"images/{Path(str(image['src'])).name}"
        for name in ("loading", "style", "width", "height"):
            image.attrs.pop(name, None)
    for style in figure.select("style[data-part]"):
        style.decompose()
    return str(figure)


def question(guess: Tag, answer: str, notes: list[str]) -> Slide:
    """Return a question for the room; the answer is the next fragment, and in the notes."""
    choices = [str(one) for one in plain(guess).find_all(["p", "ul"], recursive=False)[1:]]
    shown = f'<p class="asked">{question_text(guess)}</p>\n{"".join(choices)}\n<p class="fragment answer">{answer}</p>'
    return Slide(
        "A question for the room", shown, [*notes, f"<p>Answer, computed in the chapter: {answer}</p>"], "asks"
    )


def remember(article: Tag) -> list[Slide]:
    """Return the slide of *Remember*."""
    return [Slide("Remember", str(plain(first(article, "#remember .remember"))), [], "remember")]


def exercises(article: Tag, title: str) -> Slide:
    """Return the last slide: the exercises, the source and the licence."""
    listed = plain(first(article, "#exercises ol"))
    source = f'<p class="source">From <cite>{title}</cite>, licence MIT.</p>'
    return Slide("Exercises", f"{listed}\n{source}", [], "exercises")


# --- files ----------------------------------------------------------------------------------------------------------


def style_of(page: str) -> str:
    """Return the style of a page's drawings and of its typeset formulas, with the fonts beside the decks."""
    drawings = re.search(r'<style data-part="drawing-css[^>]*>(.*?)</style>', page, re.DOTALL)
    formulas = re.search(r"<style>(mjx-container.*?)</style>", page, re.DOTALL)
    found = "\n".join(style[1] for style in (drawings, formulas) if style)
    return found.replace("../../_static/", "_static/")


def chapter_pages(site: Path) -> dict[str, Path]:
    """Return the pages of the chapters by the names of their decks, in the order of the book.

    Raises:
        FileNotFoundError: if a page is missing.
    """
    parts = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    listed = [site / f"{page['file']}.html" for part in parts for page in part["chapters"] if "title" in page]
    for page in listed:
        if not page.is_file():
            raise FileNotFoundError(f"the book must have been built, found no {page}: run make book")
    return {page.stem: page for page in listed}


def write_deck(site: Path, page: Path, target: Path, title: str) -> int:
    """Write the deck of a page, copy the figures and the explorer that it shows; return the number of slides."""
    text = page.read_text(encoding="utf-8")
    slides = deck(text, title)
    body = "\n".join(slide.to_html() for slide in slides)
    template = (TEMPLATES / "slides.html").read_text(encoding="utf-8")
    for name, value in {
        "TITLE": BeautifulSoup(slides[0].heading, "html.parser").get_text(),
        "STYLE": style_of(text),
        "REVEAL": VENDOR,
        "SLIDES": body,
    }.items():
        template = template.replace(f"@{name}@", value)
    (target / f"{page.stem}.html").write_text(template, encoding="utf-8")
    for image in re.findall(r'src="images/([^"]+)"', body):
        copy_file(site / "_images" / image, target / "images" / image)
    for name in re.findall(rf'src="{EXPLORERS}/(\w+)\.html', body):
        shown = (site / EXPLORERS / f"{name}.html").read_text(encoding="utf-8")
        copied = target / EXPLORERS / f"{name}.html"
        copied.parent.mkdir(exist_ok=True)
        copied.write_text(shown.replace("</body>", f"{SAY_HEIGHT}\n</body>"), encoding="utf-8")
    return len(slides)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file or a folder, and make the folders above it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def write_static(site: Path, target: Path) -> None:
    """Copy what all decks load: reveal.js, fonts, the styles, and the scripts of the explorers."""
    reveal = files(REVEAL) / "_static" / "revealjs"
    for name in ("dist/reveal.css", "dist/reveal.js", "plugin/notes/notes.js", "LICENSE"):
        copy_file(Path(str(reveal / name)), target / VENDOR / name)
    for name in (*STATIC, MATHJAX):
        copy_file(site / "_static" / name, target / "_static" / name)
    copy_file(TEMPLATES / "slides.css", target / "_static" / "slides.css")


def write_decks(site: Path, target: Path, only: tuple[str, ...] = ()) -> dict[str, int]:
    """Write the decks into ``target``, with an index; return the number of slides of each. ``only`` names chapters.

    Raises:
        FileNotFoundError: if the book has not been built.
        ValueError: if ``only`` names something else than a chapter.
    """
    pages = chapter_pages(site)
    if unknown := set(only) - set(pages):
        raise ValueError(f"CHAPTER must name one of {', '.join(pages)}; got {', '.join(sorted(unknown))}")
    title = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["title"]
    target.mkdir(parents=True, exist_ok=True)
    write_static(site, target)
    counts = {name: write_deck(site, page, target, title) for name, page in pages.items() if not only or name in only}
    rows = "\n".join(
        f'<li><a href="{name}.html">{heading}</a> ({counts[name]} slides)</li>'
        for name, page in pages.items()
        if name in counts
        for heading in [heading_of(article_of(page.read_text(encoding="utf-8")))]
    )
    index = (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>Slides: {title}</title>\n'
        f'<link rel="stylesheet" href="_static/typeface.css">\n<link rel="stylesheet" href="_static/slides.css">\n'
        f'<main class="index">\n<h1>Slides: {title}</h1>\n<ol>\n{rows}\n</ol>\n</main>\n</html>\n'
    )
    (target / "index.html").write_text(index, encoding="utf-8")
    return counts


def main(only: list[str]) -> int:
    """Write the decks and print their address."""
    target = BUILD / "slides"
    shutil.rmtree(target, ignore_errors=True)
    try:
        counts = write_decks(BUILD / "html", target, tuple(only))
    except (FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(counts)} decks of {min(counts.values())} to {max(counts.values())} slides:")
    print((target / "index.html").as_uri())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
