"""The parts that ask the tree: what methods and mixtures can do, the command line, a report."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from artefacts import Document, decode_report, decode_run, decode_table
from workbench import Cases, Workbench

# ------------------------------------------------------------ what a method can do
# One function per question: where a tree answers in another way, only that function changes.


def is_accepted(bench: Workbench, name: str) -> str:
    """Why a method or a mixture is refused; empty where it is not."""
    return bench.refusal({"method": name})


def streams(bench: Workbench, name: str) -> str:
    return bench.refusal({"method": name, "stream": True})


def is_secure(bench: Workbench, name: str) -> str:
    return bench.refusal({"method": name, "secure": True})


def streams_secure(bench: Workbench, name: str) -> str:
    return bench.refusal({"method": name, "secure": True, "stream": True})


def takes_policy(bench: Workbench, name: str) -> str:
    return bench.refusal({"method": name, "policy.cap": 0.5})


def takes_policy_secure(bench: Workbench, name: str) -> str:
    return bench.refusal({"method": name, "policy.cap": 0.5, "secure": True})


QUESTIONS: Mapping[str, Callable[[Workbench, str], str]] = {
    "accepted": is_accepted,
    "streams": streams,
    "secure": is_secure,
    "streams under secure sums": streams_secure,
    "takes a policy": takes_policy,
    "takes a policy under secure sums": takes_policy_secure,
}


def answers(bench: Workbench, name: str) -> tuple[dict[str, bool], dict[str, str]]:
    """Yes or no to every question about a method or a mixture, and the words of each no."""
    words = {question: ask(bench, name) for question, ask in QUESTIONS.items()}
    return {question: not why for question, why in words.items()}, words


def about_method(bench: Workbench, row: Mapping[str, Any]) -> Document:
    """What `feddraw list methods` says of a method, and the answers."""
    told = {key: value for key, value in row.items() if key != "what"}
    found, words = answers(bench, str(row["name"]))
    return {"answers": {"listed": told, "asked": found}, "words": {"what": row["what"], **words}}


def as_first_half(bench: Workbench, first: str) -> Document:
    """The answers for A+B, by B: a half that cannot be there is refused with every other."""
    found: Document = {}
    for second in bench.methods:
        pair = f"{first}+{second}"
        accepted = first != second and not is_accepted(bench, pair)
        found[second] = answers(bench, pair)[0] if accepted else {"accepted": False}
    return {"answers": found}


def every_answer(bench: Workbench) -> Cases:
    """The table of what each method and each pair A+B can do."""
    for row in bench.catalogue:
        if row["name"] in bench.methods:
            yield row["name"], partial(about_method, bench, row)
            yield f"{row['name']} as A", partial(as_first_half, bench, row["name"])


# ------------------------------------------------------------ the command line

TYPED = (
    "--scenario",
    "quantity",
    "--model",
    "plain",
    "--size",
    "28",
    "--rounds",
    "2",
    "--epochs",
    "1",
)
TYPED += ("--batch-size", "16", "--set", "scenario.clients=4", "--set", "model.width=4")
TYPED += ("--set", "data.train=160", "--set", "data.validation=48", "--set", "data.test=48")


def typed(bench: Workbench, *words: str) -> Document:
    """`feddraw run`, and again with --resume, which finds it finished."""
    folder = bench.new_folder() / "run"
    given = ("run", *TYPED, *words, "--out", str(folder))
    bench.command(*given)
    bench.command(*given, "--resume")
    return decode_run(folder, bench.names)


def every_command(bench: Workbench) -> Cases:
    """Runs as they are typed: serial, streaming, with two workers, over Flower."""
    yield "serial", partial(typed, bench, "--method", "scaffold", "--engine", "serial")
    words = ("--method", "feddraw", "--engine", "serial", "--set", "stream=true")
    yield "stream", partial(typed, bench, *words)
    if not bench.quick:
        yield "workers", partial(typed, bench, "--method", "fedadp+feddyn", "--workers", "2")
        yield "flower", partial(typed, bench, "--method", "feddraw", "--engine", "flower")


def every_secure_command(bench: Workbench) -> Cases:
    """A secure run as it is typed."""
    words = ("--method", "feddraw", "--engine", "serial", "--set", "secure=true")
    yield "secure", partial(typed, bench, *words)


# ------------------------------------------------------------ a report

REPORTED_METHODS = ("feddraw", "fedavg", "scaffold", "centralised", "ditto")
SCENARIOS: Mapping[str, Mapping[str, Any]] = {
    "sites": {"scenario": "by_site"},
    "alike": {"scenario": "iid", "scenario.clients": 4},
}


def reported(bench: Workbench) -> Document:
    """Two scenarios, five methods, two seeds: all numbers of their report."""
    import feddraw

    folder = bench.new_folder()
    for scenario, method, seed in itertools.product(SCENARIOS, REPORTED_METHODS, (0, 1)):
        changes = {**SCENARIOS[scenario], "method": method, "seed": seed, "partition_seed": 0}
        out = folder / "runs" / f"{scenario}-{method}-{seed}"
        feddraw.run(bench.experiment(changes), out, dataset=bench.dataset)
    written = folder / "report"
    given = ("--out", str(written), "--replicates", "60", "--margin", "0.02")
    bench.command("report", str(folder / "runs"), *given)
    text = (written / "report.md").read_text(encoding="utf-8").replace(str(folder), "")
    return {"report": decode_report(text) | {"tidy results": decode_table(written / "report.csv")}}


def every_report(bench: Workbench) -> Cases:
    """The numbers of a report."""
    yield "report", partial(reported, bench)
