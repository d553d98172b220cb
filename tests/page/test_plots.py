"""Tests of the plots: the data are drawn on the given axes, and invalid arguments raise."""

from itertools import pairwise

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch

from lessons_lib.page import plots


@pytest.fixture(autouse=True)
def no_window():
    mpl.use("Agg")
    yield
    plt.close("all")


WEIGHTS = torch.rand(3, 5).softmax(-1)
ROW = torch.tensor([0.5, 0.3, 0.2])
X = torch.tensor([1, 2, 4, 8])
DRAWS = torch.linspace(-2, 2, 101)
CORNERS = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])


def draw(ax=None):
    """One call of each figure."""
    yield plots.heatmap(WEIGHTS, ax=ax)
    yield plots.bars(ROW, ax=ax)
    yield plots.lines(X, X**2, xlabel="$d_k$", ylabel="variance", ax=ax)
    yield plots.histogram(DRAWS, xlabel="score", ax=ax)
    yield plots.plane({"key": CORNERS}, ax=ax)


def test_every_plot_labels_its_axes_and_has_no_title():
    for ax in draw():
        assert ax.get_xlabel()
        assert ax.get_ylabel()
        assert not ax.get_title()


def test_every_plot_draws_on_the_given_axes():
    for i in range(5):
        _, ax = plt.subplots()
        figures = plt.get_fignums()
        drawn = list(draw(ax))[i]
        assert drawn is ax
        assert plt.get_fignums() == figures


def test_plots_fit_a_phone():
    width_in_pixels = next(draw()).figure.get_figwidth() * 96
    assert width_in_pixels <= 430


def test_plots_do_not_change_their_arguments():
    weights, row = WEIGHTS.clone().requires_grad_(), {"a": ROW.clone().requires_grad_()}
    plots.heatmap(weights, mask=torch.ones(3, 5, dtype=torch.bool))
    plots.bars(row)
    assert torch.equal(weights, WEIGHTS)
    assert torch.equal(row["a"], ROW)


def test_heatmap_colour_scale_starts_at_zero():
    image = plots.heatmap(WEIGHTS).images[0]
    torch.testing.assert_close(torch.tensor(image.get_array().data), WEIGHTS.double())
    assert image.get_clim() == (0.0, pytest.approx(float(WEIGHTS.max())))


def test_heatmap_of_both_signs_is_symmetric_about_zero():
    low, high = plots.heatmap(torch.tensor([[-4.0, 1.0, 2.0]])).images[0].get_clim()
    assert (low, high) == (-4.0, 4.0)


def colours_of(values):
    """The colours that a heat map gives to these values, as red, green and blue."""
    image = plots.heatmap(torch.tensor([values])).images[0]
    return image.cmap(image.norm(values))[:, :3]


def brightness(colours):
    return colours @ [0.2126, 0.7152, 0.0722]


def test_heatmap_larger_weight_is_a_darker_blue():
    shades = colours_of([0.0, 0.25, 0.5, 0.75, 1.0])
    assert brightness(shades)[0] > 0.95
    assert (brightness(shades)[1:] < brightness(shades)[:-1]).all()
    assert (shades[1:, 2] > shades[1:, 0]).all()


def test_heatmap_signs_have_different_colours():
    shades = colours_of([-4.0, -2.0, 0.0, 2.0, 4.0])
    light = brightness(shades)
    assert light[2] > 0.95
    assert (light[:2] < light[1:3]).all()
    assert (light[3:] < light[2:4]).all()
    red, _, blue = shades.T
    assert (blue[:2] > red[:2]).all()
    assert (red[3:] > blue[3:]).all()


def test_heatmap_of_zeros_has_a_colour_scale():
    assert plots.heatmap(torch.zeros(2, 3)).images[0].get_clim() == (0.0, 1.0)


def test_heatmap_hatches_exactly_the_masked_cells():
    mask = torch.ones(3, 5, dtype=torch.bool).tril()
    scores = torch.randn(3, 5).masked_fill(~mask, -torch.inf)
    assert len(plots.heatmap(scores, mask=mask).patches) == int((~mask).sum())


def test_heatmap_labels_rows_and_columns():
    ax = plots.heatmap(WEIGHTS, query_labels="abc", key_labels="vwxyz", unit="score")
    assert [text.get_text() for text in ax.get_yticklabels()] == list("abc")
    assert [text.get_text() for text in ax.get_xticklabels()] == list("vwxyz")
    assert "score" in [other.get_ylabel() for other in ax.figure.axes]


def test_heatmap_long_column_labels_are_slanted():
    short = plots.heatmap(WEIGHTS, key_labels="vwxyz")
    long = plots.heatmap(WEIGHTS, key_labels=["the queen", "that these", "dogs", "follow", "sleeps"])
    for ax, slanted in ((short, False), (long, True)):
        ax.figure.draw_without_rendering()
        assert all((label.get_rotation() > 0) is slanted for label in ax.get_xticklabels())
        assert all(label.get_rotation() == 0 for label in ax.get_yticklabels())


def test_heatmap_levels_name_each_shade():
    ax = plots.heatmap(torch.tensor([[0, 1, 2], [2, 2, 0]]), levels=["skipped", "masked", "whole"])
    bar = ax.figure.axes[1]
    assert [text.get_text() for text in bar.get_yticklabels()] == ["skipped", "masked", "whole"]
    image = ax.images[0]
    shades = [tuple(image.cmap(image.norm(kind))) for kind in range(3)]
    assert len(set(shades)) == image.cmap.N == 3
    assert image.get_clim() == (-0.5, 2.5)


def test_plots_share_one_theme():
    for ax in draw():
        assert tuple(ax.figure.get_size_inches()) == plots.THEME["figure.figsize"]
        assert not ax.spines["top"].get_visible()
        assert not ax.spines["right"].get_visible()


def test_theme_does_not_leak():
    before = dict(mpl.rcParams)
    list(draw())
    assert dict(mpl.rcParams) == before


@pytest.mark.another_process
def test_notebook_shows_every_plot():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    code = "import torch; from lessons_lib.page import plots; plots.bars(torch.ones(3));", "plots.bars(torch.ones(2));"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in code])
    nbclient.NotebookClient(notebook, kernel_name="python3").execute()
    assert [["image/png" in out.data for out in cell.outputs] for cell in notebook.cells] == [[True], [True]]


def test_bars_have_the_given_heights_side_by_side():
    ax = plots.bars({"scaled": ROW, "unscaled": ROW.flip(0)}, labels=["cat", "sat", "on"])
    heights = [bar.get_height() for bar in ax.patches]
    assert heights == pytest.approx([0.5, 0.3, 0.2, 0.2, 0.3, 0.5])
    edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches)
    assert all(right <= left + 1e-9 for (_, right), (left, _) in pairwise(edges))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["scaled", "unscaled"]


def test_bars_positions_are_integers_from_zero():
    for axis in (plots.bars(ROW).xaxis, plots.heatmap(WEIGHTS).xaxis, plots.heatmap(WEIGHTS).yaxis):
        ticks = [tick for tick in axis.get_majorticklocs() if 0 <= tick < 3]
        assert ticks
        assert all(float(tick).is_integer() for tick in ticks)


def test_lines_pass_through_the_points_on_the_given_scales():
    ax = plots.lines(X, {"a": X**2}, xlabel="x", ylabel="y", logx=True, logy=True, marks={"here": 3.0})
    assert ax.lines[0].get_ydata().tolist() == [1, 4, 16, 64]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.lines[1].get_xdata() == [3.0, 3.0]
    assert [text.get_text() for text in ax.texts] == ["a", "here"]


def test_lines_up_to_four_curves_are_labelled_at_the_line():
    for n_curves in range(1, 6):
        names = [f"curve {i}" for i in range(n_curves)]
        ax = plots.lines(X, {name: X + i for i, name in enumerate(names)}, xlabel="x", ylabel="y")
        at_the_line = [text.get_text() for text in ax.texts]
        in_a_legend = [text.get_text() for text in ax.get_legend().get_texts()] if ax.get_legend() else []
        assert (at_the_line, in_a_legend) == ((names, []) if n_curves <= 4 else ([], names))


def test_lines_many_points_have_some_markers():
    many = torch.arange(200)
    ax = plots.lines(many, {"a": many, "b": many + 9}, xlabel="x", ylabel="y")
    marked = [range(200)[start::every] for start, every in (line.get_markevery() for line in ax.lines)]
    assert all(10 < len(places) < 30 for places in marked)
    assert not set(marked[0]) & set(marked[1])


def test_short_logarithmic_axis_has_plain_numbers():
    ax = plots.lines(torch.tensor([0.25, 1.0, 8.0]), torch.ones(3), xlabel="c", ylabel="loss", logx=True)
    ax.figure.canvas.draw()
    shown = [tick.get_text() for tick in ax.get_xticklabels() if 0.25 <= tick.get_position()[0] <= 8]
    assert shown == ["0.5", "1", "2", "5"]


def test_unnamed_set_has_no_legend():
    assert plots.lines(X, X, xlabel="x", ylabel="y").get_legend() is None


def test_curves_differ_in_colour_and_marker():
    ax = plots.lines(X, {str(i): X + i for i in range(7)}, xlabel="x", ylabel="y")
    assert len({line.get_color() for line in ax.lines}) == 7
    assert len({line.get_marker() for line in ax.lines}) == 7


def test_histogram_is_a_density():
    ax = plots.histogram(torch.randn(999), xlabel="score", bins=17)
    assert len(ax.patches) == 17
    assert sum(bar.get_height() * bar.get_width() for bar in ax.patches) == pytest.approx(1.0)


def test_histogram_compares_with_a_density():
    ax = plots.histogram(DRAWS, xlabel="score", density_curve=lambda x: x**2)
    x, y = (torch.tensor(values) for values in ax.lines[0].get_data())
    torch.testing.assert_close(y, x**2)
    assert (float(x.min()), float(x.max())) == (-2.0, 2.0)


def test_plane_draws_points_and_numbers_few():
    many = torch.randn(20, 2)
    ax = plots.plane({"key": CORNERS, "query": many}, outline=CORNERS)
    drawn = [torch.tensor(points.get_offsets().data) for points in ax.collections]
    torch.testing.assert_close(drawn, [CORNERS.double(), many])
    assert [text.get_text() for text in ax.texts] == ["1", "2", "3"]
    torch.testing.assert_close(torch.tensor(ax.patches[0].get_xy())[:3], CORNERS.double())
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["key", "query"]


def test_plane_colours_every_point_by_its_weights():
    """The upper left belongs to the first key, the rest to the second."""

    def cells(places):
        first = ((places[:, 0] < 0) & (places[:, 1] > 0)).double()
        return torch.stack([first, 1 - first], dim=-1)

    image = plots.plane({"": CORNERS}, cells=cells).images[0]
    colours = [tuple(image.get_array()[row, column]) for row, column in ((-1, 0), (0, 0), (0, -1), (-1, -1))]
    assert image.origin == "lower"
    first, second = (mpl.colors.to_rgb(colour) for colour in plots.COLOURS[:2])
    assert colours == [first, second, second, second]


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: plots.heatmap(ROW), "weights must have 2 axes"),
        (lambda: plots.heatmap(torch.full((2, 3), torch.nan)), "weights must be finite"),
        (lambda: plots.heatmap(WEIGHTS, mask=torch.ones(5, 3, dtype=torch.bool)), "mask must have the shape"),
        (lambda: plots.heatmap(WEIGHTS, key_labels="abc"), "key_labels must name all 5"),
        (lambda: plots.heatmap(WEIGHTS, query_labels="abcde"), "query_labels must name all 3"),
        (lambda: plots.heatmap(WEIGHTS, levels="ab"), "whole numbers from 0 to 1 to have a name in levels"),
        (lambda: plots.bars({}), "at least one set"),
        (lambda: plots.bars(torch.ones(0)), "at least one value"),
        (lambda: plots.bars({"a": ROW, "b": X}), "same length"),
        (lambda: plots.bars(ROW, labels="ab"), "labels must name all 3"),
        (lambda: plots.lines(X, ROW, xlabel="x", ylabel="y"), "one value for each of the 4 points"),
        (lambda: plots.lines(X, X - 1, xlabel="x", ylabel="y", logy=True), "must be positive on a logarithmic axis"),
        (lambda: plots.lines(X - 1, X, xlabel="x", ylabel="y", logx=True), "x must be positive"),
        (lambda: plots.lines(X, X / 0, xlabel="x", ylabel="y"), "must be finite"),
        (lambda: plots.histogram(DRAWS, xlabel="x", bins=0), "bins must be at least 1"),
        (lambda: plots.histogram(WEIGHTS, xlabel="x"), "must have 1 axes"),
        (lambda: plots.plane({}), "at least one set"),
        (lambda: plots.plane({"a": WEIGHTS}), "must have two coordinates each, got 5"),
        (lambda: plots.plane({"a": CORNERS / 0}), "must be finite"),
    ],
)
def test_invalid_arguments_raise(call, says):
    with pytest.raises(ValueError, match=says):
        call()
    assert not plt.get_fignums(), "an empty figure was left behind"
