"""The report in a browser: it opens from disk, tables sort, the switch switches, nothing runs over
the edge.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from feddraw.report import ReportSettings, write_report
from run_folders import make_run

LONG = "St-Mary's-hospital-with-quite-a-long-name-<script>alert(1)</script>"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("study")
    for place, scenario in enumerate(("CHM-1", "CHM-2")):
        clients = [LONG, "B", "C", "D"]
        for method, auc in (
            ("feddraw", 0.80),
            ("fedavg", 0.82),
            ("uniform", 0.81),
            ("moon", float("nan")),
        ):
            gm = 0.75 if method == "feddraw" else 0.7
            common = {"scenario": scenario, "clients": clients, "rounds": 4}
            images = 0 if method == "moon" else 60
            make_run(
                root / f"{place}-{method}", method=method, auc=auc, gm=gm, images=images, **common
            )
        make_run(
            root / f"{place}-alone",
            method="alone",
            auc=0.7,
            alone=(0.6, 0.7, 0.7, 0.8),
            images=60,
            **common,
        )
    make_run(root / "half", finished=False)
    return write_report([root], settings=ReportSettings(replicates=20)).page.as_uri()


@pytest.fixture
def page(new_page: Any, address: str) -> Any:
    opened = new_page()
    opened.goto(address)
    return opened


def column(page: Any, number: int, table: str = "main table:visible") -> list[str]:
    rows = page.locator(table).first.locator("tbody").first.locator("tr")
    return [row.locator("th, td").nth(number).inner_text().removesuffix(" *") for row in rows.all()]


def test_tables_sort_by_number_and_by_name_and_undefined_stays_last(page: Any) -> None:
    first = page.locator("main table:visible").first
    heads = first.locator("thead button")
    assert column(page, 0)[0] == "feddraw"
    heads.nth(1).click()
    assert column(page, 0) == ["fedavg", "uniform", "feddraw", "moon"]
    assert first.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    heads.nth(1).click()
    assert column(page, 0) == ["feddraw", "uniform", "fedavg", "moon"]
    assert column(page, 1)[-1] == "undefined"
    heads.nth(0).click()
    assert column(page, 0) == ["fedavg", "feddraw", "moon", "uniform"]
    assert "alone" in first.locator("tbody").last.inner_text()  # references stay below


def test_printed_heads_are_text_as_browsers_leave_buttons_out_on_continuation_pages(
    page: Any,
) -> None:
    page.emulate_media(media="print")
    head = page.locator("main table:visible").first.locator("thead th[data-name]").nth(1)
    assert not head.locator("button").is_visible()
    shown = head.evaluate("head => getComputedStyle(head, '::before').content")
    assert shown == f'"{head.get_attribute("data-name")}"'


def test_the_switch_shows_one_metric(page: Any) -> None:
    assert page.locator("main caption:visible").first.inner_text().startswith("Test AUC")
    page.get_by_label("GM", exact=True).check()
    captions = page.locator("main caption:visible").all_inner_texts()
    assert captions[0].startswith("Test GM")
    assert not [caption for caption in captions if "Test AUC" in caption]
    page.get_by_label("AUC", exact=True).check()
    assert page.locator("main caption:visible").first.inner_text().startswith("Test AUC")


def test_a_scenario_at_a_time_or_all(page: Any) -> None:
    def headings() -> list[str]:
        return [
            text
            for text in page.locator("h2:visible").all_inner_texts()
            if text.startswith("Scenario")
        ]

    assert headings() == ["Scenario CHM-1"]
    page.locator("select#scenario").select_option("CHM-2")
    assert headings() == ["Scenario CHM-2"]
    page.locator("select#scenario").select_option("all")
    assert headings() == ["Scenario CHM-1", "Scenario CHM-2"]


def test_one_method_or_all(page: Any) -> None:
    assert {"feddraw", "fedavg"} <= set(column(page, 0))
    page.locator("select#method").select_option("fedavg")
    shown = page.locator("main table:visible").first.locator("tbody").first.locator("tr:visible")
    assert [row.locator("th").inner_text() for row in shown.all()] == ["fedavg"]
    words = [figure.get_attribute("aria-label") for figure in page.locator("figure svg").all()]
    visible = [
        figure.get_attribute("aria-label") for figure in page.locator("figure svg:visible").all()
    ]
    assert any("under feddraw" in label for label in words)
    assert not any("under feddraw" in label for label in visible)
    assert any("under fedavg" in label for label in visible)
    page.locator("select#method").select_option("")
    assert {"feddraw", "fedavg"} <= set(column(page, 0))


def test_figures_follow_the_page_into_the_dark(new_page: Any, address: str) -> None:
    colours = []
    for scheme in ("light", "dark"):
        opened = new_page(color_scheme=scheme)
        opened.goto(address)
        colours.append(
            opened.locator("figure svg text").first.evaluate(
                "(text) => getComputedStyle(text).fill"
            )
        )
    assert colours[0] != colours[1]


def test_without_script_everything_is_there(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    opened.goto(address)
    assert (
        len(
            [
                text
                for text in opened.locator("h2:visible").all_inner_texts()
                if text.startswith("Scenario")
            ]
        )
        == 2
    )
    assert opened.locator("section[data-metric=gm]").first.is_visible()
    context.close()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_nothing_runs_over_the_edge_and_axe_finds_no_fault(
    new_page: Any, address: str, width: int, scheme: str
) -> None:
    page = new_page(width=width, height=844, color_scheme=scheme)
    page.goto(address)
    for details in page.query_selector_all("details"):
        details.evaluate("(d) => { d.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    axe = Path(os.environ.get("FEDDRAW_AXE", ""))
    if axe.is_file():
        page.evaluate(axe.read_text(encoding="utf-8"))
        found = page.evaluate(
            "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'best-practice']})"
        )
        assert not [(fault["id"], fault["nodes"][0]["html"]) for fault in found["violations"]]
