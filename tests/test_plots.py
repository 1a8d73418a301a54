"""Figures: lines can be distinguished without colour, marks are where the numbers are, names are
drawn as they are.
"""

from __future__ import annotations

import io
import math
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from feddraw.analysis import palette, plots
from feddraw.analysis.critical_difference_plot import critical_difference_figure

WEIGHTS = {
    "A": [0.1, 0.3, 0.25],
    "B": [0.1, 0.2, 0.25],
    "C": [0.4, 0.3, 0.25],
    "D": [0.4, 0.2, 0.25],
}
SIZES = {"A": 10.0, "B": 10.0, "C": 40.0, "D": 40.0}


@pytest.fixture(autouse=True)
def our_look():
    with plots.figure_style():
        yield


def test_a_users_own_look_of_figures_stays():
    before = dict(mpl.rcParams)
    with mpl.rc_context(before):
        found: Any = SimpleNamespace(
            average_ranks={"a": 1.0, "b": 2.0}, groups=[["a", "b"]], difference=1.2, alpha=0.1
        )
        critical_difference_figure({"AUC": found})
        assert dict(mpl.rcParams) == before


def test_no_two_of_many_lines_look_alike_even_in_grey() -> None:
    looks = [plots.line_look(place) for place in range(20)]
    assert len({(look["linestyle"], look["marker"]) for look in looks[:8]}) == 8
    assert len({tuple(look.values()) for look in looks}) == 20


def test_colours_are_seen_on_white_paper() -> None:
    assert all(1.05 / (palette.luminance(colour) + 0.05) >= 3 for colour in palette.SERIES)


def test_equal_weights_are_marked() -> None:
    _, axes = plots.panel_figure()
    plots.draw_weights(axes, WEIGHTS, title="feddraw")
    assert any(list(line.get_ydata()) == [0.25, 0.25] for line in axes.lines)
    assert [text.get_text() for text in axes.texts] == ["equal"]


def test_clients_of_one_size_are_drawn_against_their_mean() -> None:
    _, axes = plots.panel_figure()
    assert plots.draw_deviation(axes, WEIGHTS, SIZES)
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn["A"] == pytest.approx([0, 0.05, 0])
    assert drawn["D"] == pytest.approx([0, -0.05, 0])
    assert not plots.draw_deviation(
        axes, WEIGHTS, {name: float(i) for i, name in enumerate(WEIGHTS)}
    )


def test_a_client_has_the_same_look_in_weights_and_deviation() -> None:
    (_, first), (_, second) = plots.panel_figure(), plots.panel_figure()
    plots.draw_weights(first, WEIGHTS)
    plots.draw_deviation(second, WEIGHTS, SIZES | {"A": 1.0})
    colours = [
        {line.get_label(): line.get_color() for line in axes.lines} for axes in (first, second)
    ]
    assert colours[0]["D"] == colours[1]["D"]


def test_many_methods_have_a_panel_each_beside_the_one_in_focus() -> None:
    order = ["ours", *(f"rival {number}" for number in range(7))]
    series = {
        name: [0.5, *np.linspace(0.7, 0.8 - place / 100, 9)] for place, name in enumerate(order)
    }
    spread = {"ours": ([0.4] + [0.65] * 9, [0.6] + [0.85] * 9)}
    figure = plots.curve_figure(series, focus="ours", order=order, spread=spread, label="test AUC")
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in shown] == order
    assert [[line.get_label() for line in axes.lines] for axes in shown] == [
        ["ours"],
        *(["ours", n] for n in order[1:]),
    ]
    assert [axes.get_xlabel() for axes in shown] == [""] * 5 + ["round"] * 3
    low, high = shown[0].get_ylim()
    assert 0.6 < low < 0.65
    assert high > 0.85  # the first rounds do not press the rest together
    assert (
        len(
            plots.curve_figure(
                {"a": [0.5, 0.6]}, focus="b", order=["a"], spread={}, label="GM"
            ).axes
        )
        == 1
    )


def test_curves_without_a_number_are_drawn_empty() -> None:
    series = {f"rival {number}": [math.nan] * 4 for number in range(7)}
    figure = plots.curve_figure(
        series, focus="ours", order=list(series), spread={}, label="test AUC"
    )
    assert figure.axes[0].get_ylim() == (0, 1)


def test_an_undefined_cell_of_the_heat_map_is_a_dash() -> None:
    _, axes = plots.panel_figure()
    plots.draw_heat_map(axes, np.array([[0.8, math.nan], [0.7, 0.9]]), ["a", "b"], ["x", "y"])
    assert [text.get_text() for text in axes.texts] == [".800", "–", ".700", ".900"]
    plots.draw_heat_map(axes, np.full((1, 1), math.nan), ["a"], ["x"])


def test_a_hundred_clients_are_drawn_without_names() -> None:
    (_, first), (_, second) = plots.panel_figure(), plots.panel_figure()
    names = [f"site {i}" for i in range(100)]
    plots.draw_sizes(first, dict.fromkeys(names, 10.0))
    plots.draw_heat_map(second, np.full((100, 2), 0.5), names, ["x", "y"])
    assert not [*first.texts, *second.texts]
    assert len(first.patches) == 100


def test_names_are_drawn_as_they_are() -> None:
    figure, axes = plots.panel_figure()
    names = ["$\\frac", "_first", "<b>", "x" * 60]
    plots.draw_weights(axes, {name: [0.25, 0.25] for name in names})
    text = io.StringIO()
    figure.savefig(text, format="svg")
    svg = text.getvalue()
    assert ">$\\frac<" in svg
    assert ">_first<" in svg
    assert ">&lt;b&gt;<" in svg
    assert f">{'x' * 21}…<" in svg


def test_the_roc_marks_the_operating_point() -> None:
    _, axes = plots.panel_figure()
    plots.draw_roc(axes, {"m": (np.array([0, 1]), np.array([0, 1]))}, {"m": (0.2, 0.7)}, ["m"])
    assert any(
        (list(line.get_xdata()), list(line.get_ydata())) == ([0.2], [0.7]) for line in axes.lines
    )


def test_a_figure_that_is_laid_out_once_is_saved_as_one_that_is_drawn_for_it() -> None:
    saved = []
    for prepare in (
        plots.lay_out_figure,
        lambda figure: (figure.draw_without_rendering(), figure.set_layout_engine("none")),
    ):
        figure, axes = plots.panel_figure()
        plots.draw_weights(axes, WEIGHTS, title="feddraw")
        prepare(figure)
        for kind in ("svg", "png"):
            content = io.BytesIO()
            figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else {})
            saved.append(content.getvalue())
    assert saved[:2] == saved[2:]
