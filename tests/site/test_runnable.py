"""Tests of the runnable edition: it is complete, has no MyST syntax, and is what the pages' buttons link to."""

import json
import re
import zipfile
from functools import cache
from pathlib import Path

import nbformat
import prose
import pytest
from built_site import HTML, ROOT
from pin_library import library_commit, pinned
from visits import WIDE, Seen, open_and_settle
from zip_book import pack

EDITION = ROOT / "_build" / "notebooks"
SOURCES = [p.relative_to(ROOT) for p in sorted((ROOT / "book").rglob("*.ipynb")) if ".ipynb_checkpoints" not in p.parts]
MYST = re.compile(
    r"""\{[\w:-]+\}`|\$\$[ \t]*\([\w:-]+\)|^(?::{3,}|`{3,})\{|^\([\w:-]+\)=$|(?:^|[)\]`])\{[.#][^}\n]*\}|\{\{""",
    re.MULTILINE,
)

of_the_zip = pytest.mark.xdist_group("the zip")  # one process, so that it is unpacked once


@cache
def cells(path: Path, kind: str) -> list:
    notebook = nbformat.v4.reads(path.read_text(encoding="utf-8"))  # test_edition_has_the_same_code validates it
    return [cell for cell in notebook.cells if cell.cell_type == kind]


@pytest.fixture(params=SOURCES, ids=str)
def source(request) -> Path:
    return request.param


def test_edition_contains_every_notebook():
    assert SOURCES
    assert [p.relative_to(EDITION) for p in sorted(EDITION.rglob("*.ipynb"))] == SOURCES


def test_edition_has_no_myst_syntax(source):
    text = "\n\n".join(cell.source for cell in cells(EDITION / source, "markdown"))
    assert not [found[0] for found in MYST.finditer(text)]


def test_edition_has_the_same_code_without_outputs(source):
    (_, *ours), (_, *theirs) = cells(EDITION / source, "code"), cells(ROOT / source, "code")
    assert [(cell.id, cell.source) for cell in ours] == [(cell.id, cell.source) for cell in theirs]
    assert not any(cell.outputs or cell.execution_count for cell in ours)
    failing = [cell.id for cell in theirs if "raises-exception" in cell.metadata.get("tags", [])]
    assert [cell.id for cell in ours if "raises-exception" in cell.metadata.get("tags", [])] == failing
    nbformat.validate(nbformat.read(EDITION / source, as_version=4))


def test_first_cell_pins_the_library_commit(source):
    (ours, *_), (theirs, *_) = cells(EDITION / source, "code"), cells(ROOT / source, "code")
    if library_commit() is None:
        assert ours.source == theirs.source
    else:
        (commit,) = re.findall(r"/archive/([0-9a-f]{40})\.zip", ours.source)
        assert ours.source == pinned(theirs.source, commit)
    assert "remove-cell" not in ours.metadata.get("tags", []) or "exercises" in source.parts


def test_edition_has_the_same_text_as_the_page(source):
    assert prose.notebook(EDITION / source) == prose.page(HTML / source.with_suffix(".html"))


def test_formula_numbers_agree_with_the_page(source):
    page = (HTML / source.with_suffix(".html")).read_text(encoding="utf-8")
    text = "\n".join(cell.source for cell in cells(EDITION / source, "markdown"))
    assert re.findall(r"\\tag\{([\d.]+)\}", text) == re.findall(r'class="eqno">\(([\d.]+)\)', page)


def test_links_have_existing_targets(source):
    text = "\n".join(cell.source for cell in cells(EDITION / source, "markdown"))
    for href in re.findall(r"\]\(([^()\s]+)\)", text):
        path, _, anchor = href.partition("#")
        if "://" in href:
            continue
        target = (EDITION / source).parent / path if path else EDITION / source
        assert target.is_file(), href
        assert not anchor or f'id="{anchor}"' in "".join(cell.source for cell in cells(target, "markdown")), href


def test_hand_outs_are_unchanged():
    for path in (path for path in SOURCES if "exercises" in path.parts):
        (ours, ours_first), (theirs, theirs_first) = (
            (notebook["cells"], next(cell for cell in notebook["cells"] if cell["cell_type"] == "code"))
            for notebook in (json.loads((top / path).read_text(encoding="utf-8")) for top in (EDITION, ROOT))
        )
        theirs_first["source"] = ours_first["source"]
        assert ours == theirs, path


def test_download_button_links_to_the_edition(source):
    page = (HTML / source.with_suffix(".html")).read_text(encoding="utf-8")
    assert f'href="{"../" * (len(source.parts) - 1)}_sources/{source}"' in page
    assert (HTML / "_sources" / source).read_bytes() == (EDITION / source).read_bytes()


@pytest.mark.browser
@of_the_zip
@pytest.mark.parametrize("path", ["index.html", "book/attention/scaling.html", "search.html?q=softmax"])
def test_zip_opens_without_a_server_and_external_requests(tabs, unzipped, path):
    seen = Seen()
    with tabs.lent(WIDE) as page, seen.watch(page, unzipped.as_uri()):
        open_and_settle(page, seen, f"{unzipped.as_uri()}/{path}", with_scripts=True)
        assert seen == Seen()
        assert "/attention-book/" in page.url
        assert page.locator("h1").first.inner_text()


@pytest.fixture(scope="module")
def unzipped(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("zip")
    for name in ("html", "notebooks"):
        (folder / name).symlink_to(ROOT / "_build" / name)
    pack(folder, folder / "book.zip")
    with zipfile.ZipFile(folder / "book.zip") as archive:
        archive.extractall(folder)
    return folder / "attention-book"


@of_the_zip
def test_zip_contains_site_and_notebooks(unzipped):
    assert (unzipped / "index.html").read_bytes() == (HTML / "index.html").read_bytes()
    assert all((unzipped / "notebooks" / source).is_file() for source in SOURCES)
