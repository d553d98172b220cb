"""Tests of tools/pack_figures.py: every figure of the site is in the zip, readable outside of a browser."""

import csv
import io
import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from built_site import HTML, ROOT
from pack_figures import COLOURS, FIGURE, alone, pack, plain_style

from lessons_lib.page.sketch import ROLES


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The files of the zip by their paths, as text."""
    target = tmp_path_factory.mktemp("figures") / "figures.zip"
    count = pack(ROOT, HTML, target)
    with zipfile.ZipFile(target) as archive:
        files = {name.removeprefix("figures/"): archive.read(name).decode() for name in archive.namelist()}
    assert count == len([name for name in files if name.endswith(".svg")])
    return files


def test_zip_has_every_figure_of_the_chapters(packed):
    rows = list(csv.DictReader(io.StringIO(packed["captions.csv"])))
    assert {row["file"] for row in rows} == {name for name in packed if name.endswith(".svg")}
    shown = set()
    for page in HTML.glob("book/*/*.html"):
        shown |= {f"{page.stem}/{name}.svg" for name, _ in FIGURE.findall(page.read_text())}
    assert {row["file"] for row in rows} == shown
    assert all(re.fullmatch(r"\d+\.\d+", row["number"]) for row in rows)
    assert all(len(row["description"].split()) >= 4 and row["caption"] and row["chapter"] for row in rows)
    assert {row["licence"] for row in rows} == {"MIT, Copyright (c) 2026 The authors of Attention, understood"}
    assert packed["captions.html"].count("<img ") == len(rows)
    assert packed["LICENSE"] == Path(ROOT, "LICENSE").read_text()


def test_every_picture_is_xml_without_variables(packed):
    for name, text in packed.items():
        if name.endswith(".svg"):
            root = ET.fromstring(text)
            assert root.tag == "{http://www.w3.org/2000/svg}svg", name
            assert {"width", "height", "viewBox"} <= set(root.attrib), name
            assert "var(" not in text, name
            assert "currentColor" not in text, name
            assert not re.search(r"[\";]\s*--\w", text), name


def test_drawing_alone_has_its_style_and_colours():
    css = (
        ".drawing { --query: red; }\n@media print { .drawing { --query: blue; } }\n.drawing text { fill: red; }"
        "\n.drawing :is(rect, path) { stroke: var(--query); }\n.drawing .key { fill-opacity: var(--full, 0.2); }"
    )
    style = plain_style(css)
    assert style.splitlines() == [
        "text { fill: red; }",
        "rect, path { stroke: var(--query); }",
        ".key { fill-opacity: var(--full, 0.2); }",
    ]
    shown = alone('<svg viewBox="0 0 402 20"><text x="1">a</text></svg>', style)
    assert 'width="402" height="20"' in shown
    assert f"stroke: {COLOURS['query']}" in shown
    assert "fill-opacity: 0.2" in shown
    assert set(COLOURS) == set(ROLES)


def test_missing_site_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match="run make book"):
        pack(ROOT, tmp_path, tmp_path / "figures.zip")
