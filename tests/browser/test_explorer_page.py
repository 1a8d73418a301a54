"""The explorer in a browser: its numbers are the package's, and everything on it can be used."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest

from feddraw.core.schedules import READINGS, schedule
from feddraw.data.scenarios.paper_scenarios import PAPER_SCENARIOS
from feddraw.explorer import explorer_page as whole_page

PARTS = ("size", "prior", "similarity", "reputation", "weight")
HEADER = "round,client,size,steps,prior,similarity,gamma,beta,reputation,weight,influence,status"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(whole_page(), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(new_page: Any, address: str) -> Any:
    opened = new_page()
    opened.goto(address)
    return opened


def shown(page: Any) -> dict[str, Any]:
    return page.evaluate("feddrawExplorer.state()")


def weights_shown(page: Any) -> list[list[float]]:
    return page.evaluate(
        "feddrawExplorer.rows().map((row) => row.clients.map((client) => client.weight))"
    )


def loaded(page: Any, text: str, name: str = "weights.csv") -> str:
    page.set_input_files("#file", [{"name": name, "mimeType": "text/csv", "buffer": text.encode()}])
    page.wait_for_selector("#message", state="visible")
    return str(page.inner_text("#message-text"))


def random_settings(rng: random.Random) -> dict[str, Any]:
    """Anything that the page's boxes accept, the edges included."""
    count, rounds = rng.randint(1, 20), rng.choice([1, 2, 15, rng.randint(1, 60)])
    row = [
        rng.choice([1.0, -1.0, 0.0, rng.uniform(-1, 1), rng.uniform(0.9, 1)]) for _ in range(count)
    ]
    rows = [[rng.uniform(-1, 1) for _ in range(count)] for _ in range(rounds)]
    return {
        "rounds": rounds,
        "sizes": [
            rng.choice([1, rng.randint(1, 100_000), 10**9, rng.uniform(1, 1000)])
            for _ in range(count)
        ],
        "similarities": rng.choice([None, row, rows]),
        "eta": rng.choice([0.4, 1e-6, 100.0, rng.uniform(0.01, 2)]),
        "lam": rng.choice([0.2, 1e-6, 100.0, rng.uniform(0.01, 2)]),
        "beta_max": rng.choice([3.0, 1e-6, 1000.0, rng.uniform(0.1, 20)]),
        "reading": rng.choice(READINGS),
        "clients": [f"site {i}" for i in range(count)],
    }


def close(ours: float | None, theirs: float | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return math.isclose(ours, theirs, rel_tol=1e-12, abs_tol=1e-12)


def test_its_numbers_are_those_of_the_package(page: Any) -> None:
    rng = random.Random(9)
    wanted = [random_settings(rng) for _ in range(100)]
    drawings = json.loads(
        page.evaluate("(all) => JSON.stringify(all.map(feddrawExplorer.schedule))", wanted)
    )
    for settings, drawn in zip(wanted, drawings, strict=True):
        computed = schedule(**settings)
        assert [row["round"] for row in drawn] == [row["round"] for row in computed]
        for there, here in zip(drawn, computed, strict=True):
            assert close(here["gamma"], there["gamma"]), settings
            assert close(here["beta"], there["beta"]), settings
            for client, ours in zip(there["clients"], here["clients"], strict=True):
                assert client.keys() == ours.keys()
                assert client["client"] == ours["client"]
                assert all(close(ours[part], client[part]) for part in PARTS), settings


def test_what_is_on_the_page_at_first_is_what_the_command_computes(page: Any) -> None:
    rows = schedule(
        rounds=15, sizes=[20000, 5000, 5000, 5000], similarities=[0.91, 0.99, 0.99, 0.98]
    )
    for there, here in zip(weights_shown(page), rows, strict=True):
        assert there == pytest.approx([client["weight"] for client in here["clients"]], abs=1e-12)
    assert "C1 holds 57 % of the images but counts 29 %" in page.inner_text(
        "#client-words"
    ).replace("\u00a0", " ")


def test_influence_is_shown_beside_the_weight(page: Any) -> None:
    """C1 of CHX-1 has 4/7 of the images, the others 1/7 each; equal weights leave that as it is."""
    page.fill("#round", "14")
    words = page.inner_text("#client-words")
    assert re.search(r"weight\s+25\.0\s%\s+influence\s+57\.1\s%", words)


@pytest.mark.parametrize(
    ("width", "scheme", "clients"),
    [(390, "light", 4), (390, "dark", 20), (1280, "light", 20), (1280, "dark", 4)],
)
def test_nothing_scrolls_sideways_and_axe_finds_no_fault(
    new_page: Any, address: str, width: int, scheme: str, clients: int
) -> None:
    page = new_page(width=width, height=844, color_scheme=scheme)
    names = ",".join(
        f"{'A-hospital-with-quite-a-long-name-no-':.37}{i}:{1000 + i}:0.9" for i in range(clients)
    )
    page.goto(address + (f"#clients={names}" if clients > 4 else ""))
    for details in page.query_selector_all("details"):
        details.evaluate("(d) => { d.open = true; }")
    loaded(page, "nothing useful")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    axe = Path(os.environ.get("FEDDRAW_AXE", ""))
    if axe.is_file():
        page.evaluate(axe.read_text(encoding="utf-8"))
        found = page.evaluate(
            "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'best-practice']})"
        )
        assert not [(fault["id"], fault["nodes"][0]["html"]) for fault in found["violations"]]


def test_the_watch_notices_an_error_and_a_request(new_page: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        "<img src='http://localhost:9/x.png'><script>nothere()</script>"
    )
    page = new_page()
    page.goto((tmp_path / "bad.html").as_uri())
    assert any("nothere" in problem for problem in new_page.problems)
    assert "http://localhost:9/x.png" in new_page.problems
    new_page.problems.clear()


def test_slider_and_box_move_each_other_and_the_charts(page: Any) -> None:
    for setting in ("rounds", "eta", "lam", "beta_max"):
        page.click("#reset")
        before = page.inner_html("#chart-weights")
        page.locator(f"#{setting}-range").fill("2")
        assert page.input_value(f"#{setting}") == "2"
        between = page.inner_html("#chart-weights")
        page.locator(f"#{setting}").fill("7")
        assert shown(page)[setting] == 7
        assert len({before, between, page.inner_html("#chart-weights")}) == 3


def test_a_wrong_value_is_said_and_changes_nothing(page: Any) -> None:
    before = shown(page)
    page.locator("#rounds").fill("2.5")
    assert "T must be a whole number from 1 to 1000, not “2.5”" in page.inner_text("#message-text")
    assert page.get_attribute("#rounds", "aria-invalid") == "true"
    assert shown(page) == before
    page.locator("#rounds").fill("20")
    assert page.is_hidden("#message")
    assert page.get_attribute("#rounds", "aria-invalid") is None


def test_every_scenario_of_the_paper_is_there_with_its_sizes(page: Any) -> None:
    assert page.locator("#preset option").count() == 13
    for scenario in PAPER_SCENARIOS.values():
        page.select_option("#preset", scenario.name)
        assert [client["size"] for client in shown(page)["clients"]] == list(scenario.sizes)
        assert page.locator("#clients li").count() == len(scenario.sizes)


def test_the_readings_differ_where_they_should(page: Any) -> None:
    page.check("[name=reading][value=algorithm1]")
    assert page.evaluate("feddrawExplorer.rows()[0].beta") > 2.8
    page.check("[name=reading][value=equation]")
    assert page.evaluate("feddrawExplorer.rows()[0].gamma") == pytest.approx(math.exp(-0.4))


def test_the_round_is_chosen_by_keyboard_and_by_pressing_the_chart(page: Any) -> None:
    page.focus("#round")
    page.keyboard.press("Home")
    assert "FedDRAW equals FedAvg" in page.inner_text("#round-words")
    page.keyboard.press("End")
    assert "every client counts the same" in page.inner_text("#round-words")
    page.wait_for_selector("#summary:text('Round 14: C1 25')", state="attached")
    page.locator("#chart-beta svg").click(position={"x": 60, "y": 60})
    assert shown(page)["round"] < 3


def test_clients_come_and_go_between_one_and_twenty(page: Any) -> None:
    page.evaluate("for (let i = 0; i < 16; i += 1) document.getElementById('add-client').click()")
    assert page.is_disabled("#add-client")
    assert len({client["name"] for client in shown(page)["clients"]}) == 20
    page.evaluate(
        "for (let i = 0; i < 18; i += 1) document.querySelector('[data-part=remove]').click()"
    )
    page.get_by_label("Remove C19").click()
    assert page.is_disabled("[data-part=remove]")
    assert weights_shown(page) == [[1.0]] * 15


def test_the_link_restores_everything(page: Any, new_page: Any, address: str) -> None:
    loaded(
        page,
        f"{HEADER}\n0,Ä: 1,300,1,,0.12345678901234567,,,,,,\n1,Ä:"
        " 1,300,1,,0.5,,,,,,\n0,B&=,20,1,,,,,,,,\n",
    )
    page.locator("#eta").fill("0.123")
    page.check("[name=reading][value=equation]")
    page.locator("#round").fill("1")
    page.click("#copy-link")
    other = new_page()
    other.goto(page.input_value("#link"))
    assert other.url.startswith(address)
    assert shown(other) | {"source": ""} == shown(page) | {"source": ""}
    assert weights_shown(other) == weights_shown(page)


DAMAGED = ("T=0", "eta=x", "reading=maybe", "clients=C1:-3:1", "clients=%E0%A4%A:1:1", "s=1:2")


def test_a_damaged_link_is_said_and_the_page_still_works(new_page: Any, address: str) -> None:
    page = new_page()
    for damage in DAMAGED:
        page.goto("about:blank")
        page.goto(f"{address}#{damage}")
        assert "This link cannot be shown." in page.inner_text("#message-text"), damage
        assert len(weights_shown(page)) == 15


def test_a_ledger_of_a_run_loads_with_the_similarities_of_every_round(page: Any) -> None:
    rng = random.Random(1)
    table = [[rng.uniform(0.8, 1) for _ in range(3)] for _ in range(6)]
    lines = [
        f"{t},site {i},{100 * (i + 1)},4,,{s!r},,,,,,weighted"
        for t, row in enumerate(table)
        for i, s in enumerate(row)
    ]
    assert "3 clients, 6 rounds" in loaded(page, "\n".join([HEADER, *lines]) + "\n")
    rows = schedule(rounds=6, sizes=[100, 200, 300], similarities=table)
    for there, here in zip(weights_shown(page), rows, strict=True):
        assert there == pytest.approx([client["weight"] for client in here["clients"]], abs=1e-12)
    page.click("#drop-table")
    assert shown(page)["table"] is None


def test_a_ledger_without_similarities_or_with_absent_clients_says_what_is_assumed(
    page: Any,
) -> None:
    text = f"{HEADER}\n0,A,0,0,,,,,,0,0,missing\n0,B,5,1,,,,,,1,1,weighted\n1,A,7,1,,,,,,.5,.5,weighted\n"
    said = loaded(page, text)
    assert "all are taken as 1" in said
    assert "1 updates were missing or refused" in said
    assert [client["size"] for client in shown(page)["clients"]] == [7, 5]


MALFORMED = {
    "": "has no column round, client, size, similarity",
    "round,client,size\n0,A,1\n": "has no column similarity",
    f"{HEADER}\n": "a header and no rounds",
    f"{HEADER}\n0,A,5,1,,2\n": "Line 2: a similarity must be a number from -1 to 1, not “2”",
    f"{HEADER}\nx,A,5,1,,1\n": "Line 2: round must be a whole number",
    f"{HEADER}\n0,A,-5,1,,1\n": "Line 2: a size must be",
    f"{HEADER}\n0,A,5,1,,1\n0,A,5,1,,1\n": "Round 0 has A twice",
    f"{HEADER}\n0,A,0,1,,1\n": "gives no size for A",
    f'{HEADER}\n0,"A,5,1,,1\n': "never closed",
    HEADER + "".join(f"\n0,C{i},5,1,,1" for i in range(21)): "21 clients; the page shows up to 20",
}


def test_a_malformed_file_is_explained_and_changes_nothing(page: Any) -> None:
    before = shown(page)
    for text, message in MALFORMED.items():
        assert message in loaded(page, text)
        page.click("#message-close")
    assert shown(page) == before


def test_a_file_may_be_dropped_anywhere(page: Any) -> None:
    page.evaluate(
        """(text) => {
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([text], "weights.csv"));
          document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
        }""",
        f"{HEADER}\n0,A,5,1,,1\n0,B,5,1,,.9\n",
    )
    page.wait_for_selector("#message:has-text('2 clients')")


def test_a_name_is_never_markup(page: Any) -> None:
    name = "<script>document.title='x'</script>"
    loaded(page, f'{HEADER}\n0,"{name}",5,1,,1\n0,<img src=x>,9,1,,1\n')
    for details in page.query_selector_all("details"):
        details.evaluate("(d) => { d.open = true; }")
    page.wait_for_selector("#table-weights tbody tr")
    assert name in page.inner_text("#client-words")
    assert name in page.inner_text("#table-weights")
    assert page.title() == "FedDRAW weight explorer"
    assert page.locator("img").count() == 0
    assert page.locator("main script").count() == 0


def test_tables_hold_the_numbers_and_are_saved_as_csv_that_loads_again(page: Any) -> None:
    for part in ("weights", "reputation", "gamma", "beta"):
        page.click(f"details[data-table={part}] summary")
        page.wait_for_selector(f"#table-{part} tbody tr")
    assert page.locator("#table-weights tbody tr").count() == 17  # the rounds, FedAvg and uniform
    with page.expect_download() as download:
        page.click("[data-csv=everything]")
    text = Path(download.value.path()).read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    drawn = [weight for row in weights_shown(page) for weight in row]
    assert [float(row["weight"]) for row in rows] == drawn
    loaded(page, text)
    assert [weight for row in weights_shown(page) for weight in row] == drawn


def test_a_name_that_a_spreadsheet_would_run_is_defused(page: Any) -> None:
    loaded(page, f"{HEADER}\n0,=1+1,5,1,,1\n")
    assert "'=1+1" in page.evaluate("feddrawExplorer.csv('everything')")


def test_typing_in_a_box_is_not_disturbed(page: Any) -> None:
    box = page.locator("[data-part=size]").first
    box.fill("")
    box.press_sequentially("1234.5")
    assert box.input_value() == "1234.5"
    assert shown(page)["clients"][0]["size"] == 1234.5
    assert shown(page)["preset"] == ""


def test_the_first_tab_is_a_way_past_the_introduction(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.wait_for_timeout(50)
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "explorer"


def test_playing_goes_through_the_rounds_and_stops_at_the_last(page: Any) -> None:
    page.locator("#round").fill("13")
    page.click("#play")
    page.wait_for_selector("#play:text-is('Play')")
    assert shown(page)["round"] == 14


def test_it_prints_without_its_controls(page: Any) -> None:
    page.emulate_media(media="print")
    assert page.is_hidden("#controls")
    assert page.is_visible("#chart-weights svg")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
