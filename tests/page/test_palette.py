"""Tests of the palette: colours differ for every kind of colour vision, and all copies of the palette agree."""

import re
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from test_layers import ROOT

from lessons_lib.page import palette, plots

# What is left of red, green and blue without one kind of cone: Machado et al., 2009, at full severity.
MACHADO = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def apart(colours, vision):
    """The distance of the two closest colours in CIE Lab, where 2.3 can just be noticed."""
    seen = [lab(np.clip(np.array(MACHADO[vision]) @ linear(colour), 0, 1)) for colour in colours]
    return min(np.linalg.norm(a - b) for a, b in combinations(seen, 2))


def linear(colour):
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ rgb / to_xyz.sum(axis=1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", MACHADO)
def test_colours_differ_for_every_kind_of_colour_vision(vision):
    assert apart(palette.COLOURS, vision) > 15
    assert apart([palette.DARK_QUERY, palette.DARK_KEY], vision) > 15


@pytest.mark.parametrize("wrong", [("#ff0000", "#008000"), ("#0072b2", "#9467bd"), ("#d62728", "#2ca02c")])
def test_confusable_colours_are_noticed(wrong):
    assert min(apart(wrong, vision) for vision in MACHADO) < 15 < apart(wrong, "normal")


def test_roles_are_the_first_four_colours():
    assert palette.COLOURS[:4] == (palette.QUERY, palette.KEY, palette.VALUE, palette.OUTPUT)
    assert len(set(palette.COLOURS)) == 7


def test_plots_use_the_palette():
    assert plots.COLOURS is palette.COLOURS


def test_script_repeats_the_palette():
    script = (ROOT / "page/widgets/static/palette.js").read_text()
    [listed] = re.findall(r"COLOURS = \[(.*?)\]", script, re.DOTALL)
    assert re.findall(r'"(.*?)"', listed) == list(palette.COLOURS[:6])


@pytest.mark.parametrize(
    "sheet",
    [
        "lessons_lib/page/widgets/static/explorer.css",
        "lessons_lib/page/widgets/static/hero.css",
        "book/_static/gallery.css",
    ],
)
def test_style_sheets_repeat_the_roles(sheet):
    sheet = (ROOT.parent / sheet).read_text()
    roles = {name: re.findall(rf"--{name}: (#\w+);", sheet) for name in ("query", "key", "value", "output")}
    assert roles == {
        "query": [palette.QUERY, palette.DARK_QUERY],
        "key": [palette.KEY, palette.DARK_KEY],
        "value": [palette.VALUE],
        "output": [palette.OUTPUT],
    }


def test_style_sheet_of_guesses_repeats_two_roles():
    sheet = (ROOT / "page/widgets/static/guess.css").read_text()
    assert re.findall(r"--mine: (#\w+);", sheet) == [palette.QUERY, palette.DARK_QUERY]
    assert re.findall(r"--true: (#\w+);", sheet) == [palette.KEY, palette.DARK_KEY]


def test_no_other_file_contains_a_colour_of_the_palette():
    sheets = {f"page/widgets/static/{name}.css" for name in ("explorer", "guess", "hero")}
    copies = {"page/palette.py", "page/widgets/static/palette.js", *sheets}
    known = re.compile("|".join(palette.COLOURS[:6]), re.IGNORECASE)
    for path in ROOT.rglob("*"):
        if path.suffix in {".py", ".js", ".css"} and path.relative_to(ROOT).as_posix() not in copies:
            assert not known.search(path.read_text()), f"{path.relative_to(ROOT)} writes a colour of its own"
