"""The bench as a command and its longest part: `make bench` runs these first, `make test` does
not.
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks.speed import document, frozen_travel, printed_table, secure_costs, timing
from benchmarks.speed.timing import TimingSession


def test_a_part_is_measured_from_a_checkout_and_a_mistake_is_one_line(tmp_path):
    def bench(*words):
        command = [sys.executable, "-m", "benchmarks", *words]
        return subprocess.run(
            command, cwd=timing.CHECKOUT, capture_output=True, text=True, check=False
        )

    done = bench("--quick", "--blocks", "1", "--only", "server", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "FedDRAW with gate and ledger" in done.stdout
    assert document.read_measured_parts(tmp_path).keys() == {"server"}
    wrong = bench("--only", "severs")
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "benchmarks: no 'severs' among the parts of the bench: did you mean server?\n",
    )


def test_what_secure_sums_cost_is_measured_and_becomes_lines(tmp_path):
    part = secure_costs.measure_secure_costs(
        TimingSession(blocks=1, quick=True), parameters=40_000, counts=(3, 4)
    )
    found = document.bench_document({"secure": {"blocks": 1} | part})
    table = {
        what: (figure, bar) for what, figure, _, bar in printed_table.printed_rows(found["parts"])
    }
    bars = {bar for _, bar in table.values()} - {""}
    assert bars == {"at most 1.5", "at least 200", "at most 1.1", "at most 2"}
    assert float(table["bytes up and down of a secure round ÷ a plain one"][0]) > 1
    assert (
        part["in_process"]["megabytes"]["secure"]["up"]
        > part["in_process"]["megabytes"]["plain"]["up"]
    )
    assert part["memory"].keys() == {"3", "4"}
    assert document.write_bench_files(found, tmp_path)


def test_a_head_under_secure_sums_is_measured_beside_the_whole_network():
    part = frozen_travel.measure_frozen_travel(
        TimingSession(blocks=1, quick=True), parameters=400_000
    )
    megabytes = part["megabytes"]
    # float32 down, words of eight bytes up; sites that lack the frozen tensors get all of them
    numbers = 10 * 400_000 / 1e6
    assert megabytes["whole"]["down"] > 4 * numbers
    assert megabytes["whole"]["up"] > 8 * numbers
    assert megabytes["sent"]["down"] > 4 * numbers
    assert megabytes["sent"]["up"] < numbers
    assert megabytes["head"]["down"] < numbers
    assert part["head"] == 6_405
    rows = printed_table.printed_rows({"travel": part})
    assert len(rows) == 8
