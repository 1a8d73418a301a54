"""What a server does with ten replies of DenseNet121's size, beside Flower's FedAvg, from the same
real messages.

    python -m benchmarks.flower [--blocks 20]

Both decode the messages and give the next model's record. Times are ratios from alternating blocks;
memory is the process's peak beyond what it holds when the replies are there, each measured in a
process of its own.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.speed.timing import TimingSession, ratio_of_times, seconds_of
from feddraw.core import Cohort
from feddraw.flower import FedDRAW, MethodStrategy, reply_intake
from feddraw.flower.array_records import model_to_arrays
from feddraw.flower.in_process_grid import InProcessGrid
from feddraw.methods.fedavg import fedavg
from feddraw.server.collectors import CohortSums
from feddraw.server.gate import Gate, accept, inspect
from feddraw.training import network_by_name

CLIENTS = 10


def replies_to(strategy: Any) -> list[Message]:
    """Ten clients' answers to what a strategy asks in its first round: their state dicts, as Flower
    packs them.
    """
    module, _ = network_by_name.build_network("densenet121", 5, {"weights": "none"})
    state = module.state_dict()
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        rng = np.random.default_rng(context.node_id)
        moved = {
            name: t + 1e-3 * float(rng.standard_normal()) if t.is_floating_point() else t + 1
            for name, t in state.items()
        }
        metrics = MetricRecord({"num-examples": 100 + context.node_id, "loss": 0.5})
        return Message(
            RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message
        )

    grid = InProcessGrid(app, [{}] * CLIENTS)
    strategy.rounds = 15
    messages = strategy.configure_train(1, ArrayRecord(state), ConfigRecord(), grid)
    return list(grid.send_and_receive(messages))


def fresh(replies: list[Message]) -> list[Message]:
    """The same messages in new envelopes, because ours takes the tensors out as it reads them."""
    copies = []
    for reply in replies:
        content = RecordDict(
            {
                "arrays": ArrayRecord(dict(reply.content["arrays"].items())),
                "metrics": reply.content["metrics"],
            }
        )
        copy = Message(content, reply_to=reply)
        copy.metadata.__dict__.update(reply.metadata.__dict__)
        copies.append(copy)
    return copies


def whole(strategy: Any, replies: list[Message]) -> float:
    """Seconds of `aggregate_train`: for ours with the gate and the ledger."""
    progress = getattr(strategy, "progress", None)  # ours
    before = None if progress is None else progress.model
    messages = fresh(replies)
    seconds = seconds_of(partial(strategy.aggregate_train, 1, messages))
    if progress is not None:
        progress.model = before
    return seconds


def stages(strategy: MethodStrategy, replies: list[Message]) -> dict[str, float]:
    """Seconds of each part of ours by itself."""
    clock: dict[str, float] = {}
    messages = fresh(replies)

    def lap(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        found = work()
        clock[name] = time.perf_counter() - start
        return found

    def decode() -> Any:
        answers, _ = reply_intake.read_replies(messages, strategy._training.nodes, "1")
        places = {answer.name: place for place, answer in enumerate(answers)}
        return reply_intake.decode_replies(
            answers, places, sent, reply_intake.ReplyFormat({}), reuse=strategy._clear._matrices
        )[0]

    sent, method = strategy.model, strategy.method
    assert sent is not None
    updates = lap("decode", decode)
    cohort = Cohort(0, 15, sent, updates, CLIENTS)

    def gate() -> None:
        verdicts = inspect(updates, sent, method, CLIENTS, Gate())
        accept(cohort, cohort.distances, verdicts, Gate())

    def weigh_and_sum() -> Any:
        rule, state = method.aggregation, method.init(sent)
        weights, _ = rule.weighting.weigh(cohort, state["weighting"])
        sums, _ = CohortSums.measured(rule, cohort, weights)
        return sums.aggregate(rule.server, state)

    lap("gate", gate)
    summed = lap("weigh and sum", weigh_and_sum)
    lap("encode", lambda: model_to_arrays(summed.model))
    return clock


def without_gate(strategy: MethodStrategy, replies: list[Message]) -> float:
    parts = stages(strategy, replies)
    return sum(seconds for name, seconds in parts.items() if name != "gate")


# ------------------------------------------------------------------------------------------- memory


def peak(which: str) -> float:
    """Megabytes beyond what is held when the replies are there, at the most, in a process of its
    own.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return float(pool.apply(_peak, (which,)))


def _peak(which: str) -> float:
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    strategy: Any
    if which == "FedAvg":
        strategy = FedAvg(fraction_evaluate=0.0)
    else:
        strategy = FedDRAW(fraction_evaluate=0.0, keep_replies=False)
    replies = replies_to(strategy)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = _status("VmHWM")
    strategy.aggregate_train(1, replies)
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=20)
    blocks = parser.parse_args().blocks
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(
        f"load {os.getloadavg()[0]:.2f} at the start, {blocks} alternating blocks, {CLIENTS}"
        " replies of DenseNet121"
    )
    theirs = FedAvg(fraction_evaluate=0.0)
    ours = FedDRAW(fraction_evaluate=0.0)
    plain = MethodStrategy(fedavg(), fraction_evaluate=0.0)
    replies = replies_to(ours)
    replies_to(plain)
    works = {
        "Flower's FedAvg": partial(whole, theirs, replies),
        "FedDRAW, with gate and ledger": partial(whole, ours, replies),
        "our FedAvg, with gate and ledger": partial(whole, plain, replies),
        "FedDRAW, without the gate": partial(without_gate, ours, replies),
    }
    slow, *others = works
    samples = TimingSession(blocks).interleave("", works)
    for name in others:
        ratio = ratio_of_times(samples[slow], samples[name])
        interval = f"[{ratio['low']:.2f}, {ratio['high']:.2f}]"
        print(f"{slow} ÷ {name:<34} {ratio['median']:6.2f}  {interval}")
    clocks = [stages(ours, replies) for _ in range(blocks)]
    for name in clocks[0]:
        milliseconds = 1e3 * float(np.median([clock[name] for clock in clocks]))
        print(f"  {name:<16} {milliseconds:7.1f} ms")
    print(f"  {'Flower, all':<16} {1e3 * float(np.median(samples[slow])):7.1f} ms")
    for which in ("FedAvg", "FedDRAW"):
        print(f"peak extra memory, {which}: {peak(which):.0f} MB")


if __name__ == "__main__":
    main()
