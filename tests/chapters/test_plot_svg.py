"""Tests of book/_ext/plot_svg.py: a plot that is drawn again from its SVG looks as Matplotlib draws it."""

import io

import matplotlib as mpl
import numpy as np
import pytest
from built_site import ROOT
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

WIDE, HIGH = 500, 300
LIMIT = 0.0015  # the share of pixels that differ; measured 0.0005 to 0.0007


@pytest.fixture
def plot_svg(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    import plot_svg

    return plot_svg


def example(draw) -> tuple[np.ndarray, str]:
    """Return the pixels of a figure that ``draw`` fills, and its SVG."""
    with mpl.rc_context({"svg.fonttype": "path", "path.snap": False, "text.hinting": "none"}):
        figure = Figure(figsize=(WIDE / 100, HIGH / 100), dpi=100)
        draw(figure)
        canvas, written = FigureCanvasAgg(figure), io.StringIO()
        canvas.draw()
        figure.savefig(written, format="svg")
    return np.asarray(canvas.buffer_rgba())[..., :3].astype(float), written.getvalue()


def redrawn(plot_svg, svg: str) -> np.ndarray:
    figure = Figure(figsize=(WIDE / 100, HIGH / 100), dpi=100)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDE), ylim=(HIGH, 0))
    axes.set_axis_off()
    plot_svg.draw_plot(axes, svg, 0, 0, WIDE)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].astype(float)


def lines(figure):
    axes = figure.subplots()
    axes.plot([0, 1, 4], "--o", label="all little letters")
    axes.plot([3, 2, 9], alpha=0.4, linewidth=4)
    axes.set(ylim=(0, 5), ylabel="on the side", title=r"with $\sqrt{d_k}$")
    axes.legend()


def images(figure):
    left, right = figure.subplots(1, 2)
    left.imshow(np.arange(12).reshape(3, 4))
    right.imshow(np.arange(12).reshape(3, 4), origin="lower")


def shares(figure):
    axes = figure.subplots()
    axes.bar([0, 1, 2], [1, 3, 2], color="C1")
    axes.scatter([0, 1, 2], [2, 1, 3], c="r", alpha=0.4)
    axes.fill_between([0, 1, 2], [1, 1, 2], alpha=0.3)
    axes.set_xlim(0, 2)


@pytest.mark.parametrize("draw", [lines, images, shares])
def test_plot_is_as_matplotlib_draws_it(plot_svg, draw):
    """Edges differ a little; with an image mirrored, a dash or a clip left out the share of other pixels is larger."""
    wanted, svg = example(draw)
    found = redrawn(plot_svg, svg)
    assert wanted.min() < 100
    assert (abs(found - wanted).max(-1) > 100).mean() < LIMIT


@pytest.mark.parametrize(
    ("draw", "right", "wrong"),
    [
        (images, "scale(1 -1)", "scale(1 1)"),
        (lines, "5.55,2.4;", "none;"),
        (shares, "clip-path=", "class="),
        (shares, "fill: #ff7f0e", "fill: #000000"),
        (shares, "fill-opacity: 0.3", "fill-opacity: 1"),
    ],
)
def test_wrong_plot_is_noticed(plot_svg, draw, right, wrong):
    wanted, svg = example(draw)
    assert right in svg
    assert (abs(redrawn(plot_svg, svg.replace(right, wrong)) - wanted).max(-1) > 100).mean() > LIMIT


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("inside", "complaint"),
    [
        ("<circle r='1'/>", "paths, copies, groups and images, got circle"),
        ("<path d='M 0 0 A 1 1'/>", "commands M, L, Q, C and z, got A"),
        ("<path d='M 0 0' transform='skewX(2)'/>", "translate, scale, rotate and matrix, got skewX"),
        ("<path d='M 0 0' style='fill: url(#h)'/>", "fill must be a colour"),
        ("<path d='M 0 0' style='filter: blur'/>", "styles of Matplotlib, got filter"),
    ],
)
def test_svg_of_another_program_raises(plot_svg, inside, complaint):
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10">{inside}</svg>'
    with pytest.raises(ValueError, match=complaint):
        redrawn(plot_svg, svg)
    with pytest.raises(ValueError, match="viewBox"):
        plot_svg.size("<svg/>")
