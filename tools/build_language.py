"""Build the site in another language into _build/html/LANGUAGE, beside the English site: make book LANGUAGE=zh_CN.

The pages come from the same sources with the translations of ``locale/LANGUAGE`` (``book/_ext/translation.py``). The
outputs of notebooks are those of the English runs. Afterwards each translated page and its English page link to each
other.
"""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from runs import BUILD, ROOT, run_notebooks

sys.path.append(str(ROOT / "book" / "_ext"))
from catalogs import CONTENTS, languages, of_page  # isort: skip

SITE = BUILD / "html"
NAMES = {"en": "English", "zh_CN": "中文"}
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


def titles_translated(entry: Any, titles: dict[str, str]) -> Any:
    """Return the contents of ``_toc.yml`` with translated titles and captions."""
    if isinstance(entry, list):
        return [titles_translated(one, titles) for one in entry]
    if not isinstance(entry, dict):
        return entry
    return {
        key: titles.get(value, value) if key in ("title", "caption") else titles_translated(value, titles)
        for key, value in entry.items()
    }


def write_settings(language: str, target: Path) -> None:
    """Write ``_config.yml`` and ``_toc.yml`` of the site in another language into a folder."""
    titles = of_page(language, CONTENTS)
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    settings["title"] = titles.get(settings["title"], settings["title"])
    style = ROOT / "locale" / language / "static"
    config = settings["sphinx"]["config"]
    config |= {"language": language, "html_title": settings["title"]}
    config["html_static_path"] = [str(ROOT / path) for path in config["html_static_path"]]
    config["html_static_path"] += [str(style)] if style.exists() else []
    extensions = settings["sphinx"]["local_extensions"]
    extensions |= {name: str(ROOT / path) for name, path in extensions.items()}  # relative ones are below the settings
    config["html_css_files"] += sorted(path.name for path in style.glob("*.css"))
    for name, written in (("_toc.yml", titles_translated(contents, titles)), ("_config.yml", settings)):
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
    shutil.copy(BUILD / "runs.json", inner)
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
    pages = json.loads((site / "translated.json").read_text(encoding="utf-8"))
    link_pages(pages, english, language)
    print(f"\n{len(pages)} pages in {NAMES.get(language, language)}: {(site / 'index.html').as_uri()}")
    return 0


def link_pages(pages: list[str], site: Path, language: str) -> None:
    """Link each of the pages in another language and its English page to each other, if both exist."""
    for name in pages:
        first, second = site / f"{name}.html", site / language / f"{name}.html"
        if not (first.exists() and second.exists()):
            continue
        up = "../" * name.count("/")
        to_second, to_first = f"{up}{language}/{name}.html", f"{up}../{name}.html"
        first.write_text(
            linked(first.read_text(encoding="utf-8"), language, to_second, f"{name}.html"), encoding="utf-8"
        )
        own = second.read_text(encoding="utf-8")
        second.write_text(linked(own, "en", to_first, f"{name}.html", of=language), encoding="utf-8")


def linked(page: str, language: str, address: str, name: str, of: str = "en") -> str:
    """Return the HTML of a page with a link to the same page in ``language``, in its head and in its header."""
    page = ADDED.sub("", page)
    code, own = language.replace("_", "-"), of.replace("_", "-")
    itself = html.escape(name.rsplit("/", 1)[-1])
    alternates = "".join(
        f'<link rel="alternate" hreflang="{tag}" href="{html.escape(to)}" data-language>\n'
        for tag, to in ((own, itself), (code, address))
    )
    words = NAMES.get(language, language)
    switch = (
        f'<a class="language-switch" style="{STYLE}" href="{html.escape(address)}" hreflang="{code}" lang="{code}"'
        f' onclick="{html.escape(SAME_PLACE)}">{words}</a>\n'
    )
    page = HEAD.sub(lambda end: alternates + end[0], page, count=1)
    return BUTTONS.sub(lambda start: start[0] + switch, page, count=1)
