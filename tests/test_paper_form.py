"""The paper's tables in its own form: what is printed bold, ranked and put beside the published
numbers.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from typer.testing import CliRunner

from feddraw.analysis import bootstrap
from feddraw.analysis.plots import figure_style
from feddraw.cli import app
from feddraw.cli.report import report_significance_level
from feddraw.data.scenarios.paper_scenarios import PAPER_SCENARIOS
from feddraw.errors import UserError
from feddraw.paper import published_tables
from feddraw.report import ReportSettings, markdown, paper_tex, write_report
from feddraw.report.blocks import Bullets, Cell, Heading, ReportDocument, ReportTable
from feddraw.report.latex import latex_tables
from feddraw.report.section_order import compose_report
from feddraw.report.sections.paper_form import weights_caption
from feddraw.report.statistics import compute_report
from feddraw.results.run_collection import collect_runs
from run_folders import make_run

SCENARIOS = ("CHX-4", "CHX-1", "CHM-2", "CHM-5")
METHODS = ("FedAvg", "FedDRAW", "MOON")


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """Runs whose means are the paper's, but for MOON's in CHX-1, which equals FedAvg's to the
    printed digits.
    """
    folder = tmp_path_factory.mktemp("matrix")
    for scenario in SCENARIOS:
        for method in METHODS:
            values = {m: _published(m, scenario, method) for m in ("auc", "gm")}
            if (scenario, method) == ("CHX-1", "MOON"):
                values["auc"] = _published("auc", "CHX-1", "FedDRAW") + 0.00001
            for seed, nudge in enumerate((-0.002, 0.002)):
                make_run(
                    folder / f"{scenario}_{method}_{seed}",
                    method=method.lower(),
                    scenario=scenario,
                    seed=seed,
                    auc=values["auc"] + nudge,
                    gm=values["gm"] + nudge,
                    sizes=PAPER_SCENARIOS[scenario.lower()].printed,
                    settings={
                        "data.name": PAPER_SCENARIOS[scenario.lower()].dataset,
                        "scenario.scale": 1.0,
                    },
                )
    report = compute_report(
        collect_runs([folder]),
        settings=ReportSettings(alpha=report_significance_level("paper"), replicates=0),
        command="",
    )
    with figure_style():
        return compose_report(report, "The matrix")


def _published(metric, scenario, method):
    table = published_tables.published_results(metric)
    return float(table.values[table.scenarios.index(scenario), table.methods.index(method)]) / 100


def test_performance_is_by_data_set_in_percent_with_the_best_of_a_column_in_bold(document):
    text = paper_tex.render_paper_tex(document, "figures")
    assert "Performance (\\%) on CheXpert across two client-partition scenarios" in text
    assert "standard deviation over two runs" in text
    assert "\\multicolumn{2}{c}{CHX-1} & \\multicolumn{2}{c}{CHX-4}" in text
    assert "\\cmidrule(lr){2-3}\\cmidrule(lr){4-5}" in text
    (ours,) = re.findall(r"FedDRAW & (.*) \\\\", text[: text.index("ChestMNIST")])
    assert ours.split(" & ") == [
        r"\textbf{86.67 $\pm$ 0.28}",
        r"\textbf{78.76 $\pm$ 0.28}",
        r"85.57 $\pm$ 0.28",
        r"\textbf{77.35 $\pm$ 0.28}",
    ]
    assert r"MOON & \textbf{86.67 $\pm$ 0.28}" in text  # equal to the printed digits


def test_ranks_are_those_of_the_table_and_the_best_average_is_bold(document):
    text = paper_tex.render_paper_tex(document, "figures")
    assert "CHM-5 & 2 / 1 & 1 / 2 & 3 / 3" in text
    assert re.search(r"Average rank \(GM\) & \\textbf\{1\.00\} & 2\.25 & 2\.75", text)
    assert "alpha 0.1): " in text
    assert "Not significantly different" not in text  # all of the groups are in the diagrams
    assert "alpha 0.05" not in text


def test_the_published_numbers_stand_beside_ours(document):
    page = markdown.render_markdown(document, "figures")
    assert "| FedAvg, paper | 84.98 |" in page
    assert "| FedAvg, difference | +0.00 |" in page
    assert "| MOON, difference | +2.81 |" in page
    assert re.search(r"\| Friedman's chi-square \(AUC\) \| [\d.]+ \| 58.61 \|", page)


def test_numbers_from_other_images_do_not_stand_beside_the_papers(tmp_path):
    for scenario in ("CHM-2", "CHM-5"):
        for method in ("fedavg", "feddraw"):
            make_run(tmp_path / f"{scenario}_{method}", method=method, scenario=scenario)  # 2 %
    report = compute_report(
        collect_runs([tmp_path]), settings=ReportSettings(replicates=0), command=""
    )
    with figure_style():
        page = markdown.render_markdown(compose_report(report, "Phantoms"), "figures")
    assert "CHM-2 and CHM-5 were not run on the paper's images at the paper's scale" in page
    assert ", difference |" not in page
    assert "Ranks and tests beside the paper's" not in page


def test_the_four_panels_of_the_paper_are_drawn(document):
    names = {picture.name for picture in paper_tex.paper_pictures(document)}
    assert names == {
        "paper-ranks-auc",
        "paper-ranks-gm",
        *(f"paper-weights-{one}" for one in "abcd"),
    }
    assert all(
        f"figures/{name}.pdf" in paper_tex.render_paper_tex(document, "figures") for name in names
    )


@pytest.mark.parametrize(
    ("sizes", "panels"),
    [
        ((90, 210, 330, 470), "(a) CHM-2, C1 with 90 images, C2 with 210 images"),
        (
            (100, 50, 100, 100),
            "(a), (b) CHM-2, C1, C3 and C4 with 100 images each, C2 with 50 images",
        ),
        ((50, 100, 100, 100), "(a), (b) CHM-2, C1 with 50 images, C2–C4 with 100 images each"),
    ],
)
def test_the_caption_has_the_panels_that_are_drawn_and_the_clients_of_each_size(
    sizes, panels, tmp_path
):
    make_run(tmp_path / "run", sizes=sizes)
    report = compute_report(
        collect_runs([tmp_path]), settings=ReportSettings(replicates=0), command=""
    )
    caption = weights_caption(report)
    assert panels in caption
    assert ("The panel on the right" in caption) == (len(set(sizes)) < 4)


def test_the_preset_has_the_papers_level_and_an_unknown_one_is_refused():
    assert (
        report_significance_level("paper"),
        report_significance_level("laptop"),
        report_significance_level(""),
    ) == (
        0.10,
        0.05,
        0.05,
    )
    with pytest.raises(UserError, match="among the presets"):
        report_significance_level("papr")


def test_a_pdf_without_tex_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "nothing"), "--pdf"])
    assert "a PDF needs TeX" in str(done.exception)


# -------------------------------------------------------------------------------------- wide tables


def wide(columns, spans=()):
    cells = [Cell("0.8667 ± 0.0025", 0.8667)] * columns
    return ReportTable(
        "Wide",
        ["method", *map(str, range(columns))],
        [[Cell("feddraw"), *cells]],
        (),
        "note",
        "wide",
        spans,
    )


def test_a_wide_table_comes_in_blocks_that_all_begin_with_its_first_column():
    parts = wide(12).in_blocks(150)
    assert [part.header for part in parts] == [
        ["method", *map(str, range(8))],
        ["method", "8", "9", "10", "11"],
    ]
    assert [part.caption for part in parts] == ["Wide (1 of 2)", "Wide (2 of 2)"]
    assert [part.note for part in parts] == ["", "note"]
    assert all(part.width <= 150 for part in parts)
    assert wide(4).in_blocks(150) == [wide(4)]


def test_columns_under_one_heading_stay_together():
    parts = wide(6, [("a", 2), ("b", 2), ("c", 2)]).in_blocks(70)
    assert [part.spans for part in parts] == [[("a", 2)], [("b", 2)], [("c", 2)]]


def test_no_name_in_latex_is_an_option_or_a_command():
    name = "[3cm] \\input{x}"
    table = ReportTable(name, [name, "b"], [[Cell(name), Cell(name)]], label="x")
    document = ReportDocument("t", [Heading("p", anchor="paper"), Bullets([name]), table], [])
    written = paper_tex.render_paper_tex(document, "figures")
    assert written.count(r"{[}3cm{]} \textbackslash{}input\{x\}") == 5
    assert not re.search(r"(\\\\|rule|\\item)\s*\[", written)


def test_the_name_of_a_data_set_is_no_command_in_a_label(tmp_path):
    data = {"data.name": r"folder}\input{x"}
    for scenario in ("A", "B"):
        for method in ("fedavg", "feddraw"):
            place = tmp_path / f"{scenario}-{method}"
            make_run(place, scenario=scenario, method=method, settings=data)
    write_report([tmp_path], tmp_path / "page", settings=ReportSettings(replicates=0))
    for name in ("tables.tex", "paper.tex"):
        assert r"\input{" not in (tmp_path / "page" / name).read_text()


def test_a_latex_table_is_as_wide_as_a_column_or_the_page():
    assert r"\begin{table*}[!htbp]" in latex_tables([wide(6)])
    assert r"\begin{table}[!htbp]" in latex_tables([wide(1)])
    assert r"\resizebox{\ifdim\width>\textwidth \textwidth\else\width\fi}" in latex_tables(
        [wide(6)]
    )


# -------------------------------------------------------------------------------------- many images


def test_replicates_on_many_images_are_those_on_few_but_for_a_hair(monkeypatch):
    rng = np.random.default_rng(0)
    truth = (rng.random((1500, 2)) < (0.1, 0.5)).astype(np.int8)
    truth[:40, 1] = -1
    models = [1.2 * truth + rng.standard_normal(truth.shape) for _ in range(2)]
    for measure, tolerance in ((bootstrap.weighted_auc, 0.1), (bootstrap.weighted_gm, 1e-9)):
        outputs = (
            models
            if measure is bootstrap.weighted_auc
            else [(m > 0.5).astype(float) for m in models]
        )
        found = []
        for large in (10, 10**9):
            monkeypatch.setattr(bootstrap, "LARGE", large)
            how = {
                "measure": measure,
                "patients": np.arange(1500) // 2,
                "folds": np.arange(1500) % 2,
                "replicates": 60,
            }
            found.append(bootstrap.bootstrap(outputs, truth, np.random.default_rng(1), **how))
        np.testing.assert_allclose(found[0][:, 0], found[1][:, 0], atol=1e-12)
        assert np.abs(found[0] - found[1]).max() < tolerance * found[1][:, 1:].std()
