"""The LaTeX of a report of the paper's whole matrix, compiled: in the paper's form, and in
templates of two columns.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from feddraw.analysis.plots import figure_style, save_figure
from feddraw.data.scenarios.paper_scenarios import PAPER_SCENARIOS
from feddraw.paper import published_tables
from feddraw.report import latex, paper_tex
from feddraw.report.section_order import compose_report
from feddraw.report.statistics import compute_report
from feddraw.results.run_collection import collect_runs

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from archives import chestmnist_archive, chexpert_archive
from run_folders import make_run

TEMPLATES = {
    "article.cls": r"\documentclass[10pt,twocolumn]{article}",
    "IEEEtran.cls": r"\documentclass[journal]{IEEEtran}",
}
NEEDS = {
    "IEEEtran.cls": ("IEEEtran.cls", "ptmr7t.tfm")
}  # a class, and the Times that it sets everything in
ENGINE = next((name for name in ("pdflatex", "lualatex", "xelatex") if shutil.which(name)), None)

pytestmark = pytest.mark.skipif(
    ENGINE is None, reason="no TeX here: apt install texlive-latex-recommended"
)


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matrix")
    for scenario in PAPER_SCENARIOS.values():
        for method in published_tables.published_results("auc").methods:
            for seed in (0, 1):
                values = {metric: _value(metric, scenario.name, method) for metric in ("auc", "gm")}
                make_run(
                    folder / f"{scenario.name}_{method}_{seed}",
                    method=method.lower(),
                    scenario=scenario.name,
                    seed=seed,
                    auc=values["auc"] + 0.001 * seed,
                    gm=values["gm"],
                    sizes=scenario.printed,
                    rounds=15,
                    settings={"data.name": scenario.dataset, "scenario.scale": 1.0},
                )
    report = compute_report(
        collect_runs([folder]), alpha=0.1, replicates=0, command="", say=lambda _: None
    )
    with figure_style():
        return compose_report(report, "The paper's matrix & 100 % of it")


SCALE = 0.004
QUICK = {
    "model": "plain",
    "data.size": 28,
    "rounds": 1,
    "training.epochs": 1,
    "training.batch_size": 16,
    "scenario.scale": SCALE,
}


def test_one_command_goes_from_two_archives_to_the_papers_page(tmp_path):
    """The study as it is shipped, in miniature: two of its methods, one seed, a small network, one
    round.
    """
    study = (Path(__file__).parents[1] / "studies" / "paper.toml").read_text()
    study = re.sub(r"(?m)^seed = .*$", "seed = [0]", study)
    (tmp_path / "paper.toml").write_text(
        re.sub(r"(?m)^method = .*$", 'method = ["fedavg", "feddraw"]', study)
    )
    archives = {
        "chexpert": chexpert_archive(tmp_path, SCALE),
        "chestmnist": chestmnist_archive(tmp_path, SCALE),
    }
    words = [word for name, place in archives.items() for word in (f"--data-{name}", str(place))]
    words += [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "feddraw", "study", "paper.toml", *words, "--pdf", "--out", "runs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "paper.pdf").read_bytes().startswith(b"%PDF")
    page = (tmp_path / "runs" / "paper.tex").read_text()
    assert all(scenario.name in page for scenario in PAPER_SCENARIOS.values())


def _value(metric: str, scenario: str, method: str) -> float:
    table = published_tables.published_results(metric)
    return float(table.values[table.scenarios.index(scenario), table.methods.index(method)]) / 100


def test_the_papers_page_compiles(document, tmp_path):
    (tmp_path / "figures").mkdir()
    for picture in paper_tex.paper_pictures(document):
        save_figure(picture.figure, tmp_path / "figures" / f"{picture.name}.pdf")
    (tmp_path / "paper.tex").write_text(paper_tex.render_paper_tex(document, "figures"))
    assert paper_tex.compile_pdf(tmp_path / "paper.tex").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_table_is_wider_than_its_place_in_two_columns(document, tmp_path, template):
    if not all(map(_installed, NEEDS.get(template, (template,)))):
        pytest.skip(
            f"{template} or its fonts are not installed: apt install texlive-publishers"
            " texlive-fonts-recommended"
        )
    (tmp_path / "tables.tex").write_text(latex.render_latex(document))
    (tmp_path / "main.tex").write_text(
        f"{TEMPLATES[template]}\n\\usepackage[T1]{{fontenc}}\n\\usepackage{{booktabs,graphicx}}\n\\maxdeadcycles=1000\n"
        "\\extrafloats{200}\n\\begin{document}\nText.\n\\input{tables}\n\\end{document}\n"
    )
    done = subprocess.run(
        [str(ENGINE), "-interaction=nonstopmode", "-halt-on-error", "main.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    wide = [
        float(points)
        for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", done.stdout)
    ]
    assert max(wide, default=0.0) < 1.0


def _installed(file: str) -> bool:
    found = subprocess.run(["kpsewhich", file], capture_output=True, text=True, check=False)
    return bool(found.stdout.strip())
