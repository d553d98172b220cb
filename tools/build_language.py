"""Build the site in another language into _build/html/LANGUAGE, beside the English site: make book LANGUAGE=zh_CN.

The pages come from the same sources with the translations of ``locale/LANGUAGE`` (``book/_ext/translation.py``). A
finished page whose code words are translated runs once in the language (``language_runs.py``); the outputs of all
others are those of the English runs. Afterwards each translated page and the same page in other languages link to each
other.
"""

import html
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from language_runs import run_in_language
from runs import BUILD, ROOT, run_notebooks
from set_repository import defined_address

sys.path.append(str(ROOT / "book" / "_ext"))
from catalogs import CONTENTS, headings_of_reference, languages, of_page  # isort: skip
from repository_url import PLACEHOLDER, pages_address  # isort: skip

SITE = BUILD / "html"
ENGLISH = "en"
NAMES = {ENGLISH: "English", "zh_CN": "中文"}
BUTTONS = re.compile(r'<div class="article-header-buttons">\s*')
HEAD = re.compile(r"</head>")
ADDED = re.compile(
    r'<link rel="alternate" hreflang="[^"]*" href="[^"]*" data-language>\n|<a class="language-switch".*?</a>\n',
    re.DOTALL,
)
STYLE = "align-self: center; padding: 0 0.6rem; color: inherit; white-space: nowrap"
# Open the section that the address names if it is in the window, or else the one at the top of the window. Sections
# have the same anchors in both languages.
SAME_PLACE = (
    "const top = (one) => one ? one.getBoundingClientRect().top : -1;"
    "const named = top(document.getElementById(location.hash.slice(1)));"
    "const above = [...document.querySelectorAll('article section[id]')].filter((one) => top(one) < 150);"
    "const keeps = location.hash.startsWith('#explore=') || (named >= 0 && named < innerHeight);"
    "this.hash = keeps ? location.hash : above.length > 1 ? above.at(-1).id : '';"
)


def titles_translated(entry: Any, titles: dict[str, str], headings: dict[str, str] | None = None) -> Any:
    """Return the contents of ``_toc.yml`` with translated titles and captions.

    A page of ``headings`` gets its translated heading as its title: in the reference, which has no catalog of its own.
    """
    headings = headings or {}
    if isinstance(entry, list):
        return [titles_translated(one, titles, headings) for one in entry]
    if not isinstance(entry, dict):
        return entry
    changed = {
        key: titles.get(value, value) if key in ("title", "caption") else titles_translated(value, titles, headings)
        for key, value in entry.items()
    }
    heading = headings.get(entry.get("file", ""), "")
    return changed | ({"title": titles[heading]} if heading in titles else {})


def site_address(root: Path = ROOT) -> str:
    """Return the address of the English site with a slash at its end, or an empty string while it has none."""
    settings = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    own, repository = settings.get("html", {}).get("baseurl", ""), defined_address(root)
    if not own and PLACEHOLDER in repository:
        return ""
    return (own or pages_address({"repository_url": repository})).rstrip("/") + "/"


def write_settings(language: str, target: Path) -> None:
    """Write ``_config.yml`` and ``_toc.yml`` of the site in another language into a folder."""
    titles = of_page(language, CONTENTS)
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    translated = titles_translated(contents, titles, headings_of_reference())
    settings |= {key: titles.get(settings[key], settings[key]) for key in ("title", "author")}
    style = ROOT / "locale" / language / "static"
    if base := site_address():
        settings["html"] = settings.get("html", {}) | {"baseurl": f"{base}{language}/"}
    config = settings["sphinx"]["config"]
    config |= {"language": language, "html_title": settings["title"]}
    config["html_static_path"] = [str(ROOT / path) for path in config["html_static_path"]]
    config["html_static_path"] += [str(style)] if style.exists() else []
    extensions = settings["sphinx"]["local_extensions"]
    extensions |= {name: str(ROOT / path) for name, path in extensions.items()}  # relative ones are below the settings
    config["html_css_files"] += sorted(path.name for path in style.glob("*.css"))
    for name, written in (("_toc.yml", translated), ("_config.yml", settings)):
        (target / name).write_text(yaml.safe_dump(written, allow_unicode=True, sort_keys=False), encoding="utf-8")


def build(language: str, english: Path = SITE) -> int:
    """Build the site in ``language`` below the ``english`` site; return the exit status, 0 for success.

    Raises:
        ValueError: if the language has no catalogs.
    """
    if language not in languages():
        known = ", ".join(languages())
        raise ValueError(f"LANGUAGE must be a language with catalogs in locale/ ({known}), got {language!r}")
    target = BUILD / language
    target.mkdir(parents=True, exist_ok=True)
    if not run_notebooks(ROOT):
        return 1
    write_settings(language, target)
    inner = target / "_build"
    inner.mkdir(exist_ok=True)
    if not run_in_language(language, inner / "runs.json"):
        return 1
    shutil.rmtree(inner / "html", ignore_errors=True)
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ROOT, "--all", "-W", "-n", "--keep-going"]
    command += ["--path-output", target, "--config", target / "_config.yml", "--toc", target / "_toc.yml"]
    made = subprocess.run(command, cwd=ROOT, env={**os.environ, "BOOK_LANGUAGE": language})
    if made.returncode:
        print("The site was not built: see the warnings above; each of them counts as an error.", file=sys.stderr)
        return made.returncode
    site = english / language
    shutil.rmtree(site, ignore_errors=True)
    site.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(inner / "html", site)
    copy_missing_cards(english, site)
    list_sitemap(english, site)
    pages = json.loads((site / "translated.json").read_text(encoding="utf-8"))
    link_pages(pages, english, site_address())
    print(f"\n{len(pages)} pages in {NAMES.get(language, language)}: {(site / 'index.html').as_uri()}")
    return 0


def copy_missing_cards(english: Path, site: Path) -> None:
    """Copy the pictures of the English site that a site in another language could not draw (``social_cards.py``)."""
    cards = english / "_static" / "cards"
    for card in cards.rglob("*.png"):
        own = site / "_static" / "cards" / card.relative_to(cards)
        if not own.exists():
            own.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(card, own)


def list_sitemap(english: Path, site: Path) -> None:
    """Move the line with the sitemap from ``robots.txt`` of a site in another language to that of the English one.

    Search engines read only the file at the root. Neither file exists while the site has no address.
    """
    own, root = site / "robots.txt", english / "robots.txt"
    if not (own.exists() and root.exists()):
        return
    lines = root.read_text(encoding="utf-8").splitlines()
    lines += [line for line in own.read_text(encoding="utf-8").splitlines() if line not in lines]
    root.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    own.unlink()


def versions(name: str, site: Path) -> dict[str, str]:
    """Return the languages in which a page was built and translated, each with the page's path in the whole site."""
    found = {ENGLISH: f"{name}.html"} if (site / f"{name}.html").exists() else {}
    for listed in sorted(site.glob("*/translated.json")):
        language = listed.parent.name
        if name in json.loads(listed.read_text(encoding="utf-8")) and (site / language / f"{name}.html").exists():
            found[language] = f"{language}/{name}.html"
    return found


def link_pages(pages: list[str], site: Path, base: str = "") -> None:
    """Link each of the pages to the same page in every other language in which it was built.

    ``base`` is the address of the site, if it has one. Search engines want complete addresses.
    """
    for name in pages:
        found = versions(name, site)
        for language, path in found.items() if len(found) > 1 else ():
            file = site / path
            file.write_text(linked(file.read_text(encoding="utf-8"), language, found, base), encoding="utf-8")


def linked(page: str, own: str, found: dict[str, str], base: str = "") -> str:
    """Return the HTML of a page in the language ``own`` with links to the others, in its head and in its header.

    ``found`` has the page's path in each language.
    """
    page = ADDED.sub("", page)
    folder = posixpath.dirname(found[own])
    relative = {language: posixpath.relpath(path, folder) for language, path in found.items()}
    to = {language: base + path for language, path in found.items()} if base else relative
    tags = [(tag_of(language), to[language]) for language in sorted(found, key=lambda one: one != own)]
    if base and ENGLISH in found:
        tags.append(("x-default", to[ENGLISH]))
    alternates = "".join(
        f'<link rel="alternate" hreflang="{tag}" href="{html.escape(address)}" data-language>\n'
        for tag, address in tags
    )
    switches = "".join(switch(language, relative[language]) for language in found if language != own)
    page = HEAD.sub(lambda end: alternates + end[0], page, count=1)
    return BUTTONS.sub(lambda start: start[0] + switches, page, count=1)


def switch(language: str, address: str) -> str:
    """Return the link of the header to the page in another language."""
    tag, words = tag_of(language), NAMES.get(language, language)
    return (
        f'<a class="language-switch" style="{STYLE}" href="{html.escape(address)}" hreflang="{tag}" lang="{tag}"'
        f' onclick="{html.escape(SAME_PLACE)}">{words}</a>\n'
    )


def tag_of(language: str) -> str:
    """Return the name of a language as HTML writes it.

    >>> tag_of("zh_CN")
    'zh-CN'
    """
    return language.replace("_", "-")
