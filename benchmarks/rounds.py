"""How much time a federated round takes beyond its training, as ratios measured side by side.

    python benchmarks/rounds.py [--blocks 20]

Evaluation and checkpoints are not part of a round here. Everything is synthetic.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np
import torch
from torch import nn

from feddraw import models
from feddraw.core import Cohort, Method, Model, Update
from feddraw.engines.processes import Processes
from feddraw.engines.serial import Serial
from feddraw.experiment import initial_model
from feddraw.federation import federate
from feddraw.methods.fedavg import fedavg
from feddraw.methods.feddraw import feddraw
from feddraw.training import Examples, Trainer, Training, batches
from interleaved import heading, ratio, show, timed

CLIENTS, IMAGES, PIXELS, BATCH = 10, 192, 32, 64


def workload(method: Method) -> tuple[Trainer, Model]:
    """Ten equal clients of random images on the compact network."""
    rng = np.random.default_rng(0)
    total = CLIENTS * IMAGES
    images = rng.integers(0, 256, (total, PIXELS, PIXELS), dtype=np.uint8)
    examples = Examples(images, rng.integers(0, 2, (total, 5)).astype(np.float32))
    shards = np.split(np.arange(total), CLIENTS)
    build = partial(models.build, "compact", 5, {})
    return Trainer(build, examples, shards, Training(epochs=1, batch_size=BATCH), method.local), initial_model(build, 0)


def bare_loop(trainer: Trainer, model: Model) -> float:
    """The same gradient steps as a careful script would write them: channels last, fused Adam, gathered batches."""
    module, _ = trainer.build()
    module = module.to(memory_format=torch.channels_last)
    state = {name: torch.from_numpy(array) for name, array in model.arrays().items()}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    start = time.perf_counter()
    for shard in trainer.shards:
        module.load_state_dict(state)
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, fused=True)
        module.train()
        for rows in batches(shard, BATCH, np.random.default_rng(0)):
            images, targets = trainer.examples.batch(rows)
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(module(images), targets).backward()
            optimizer.step()
    seconds = time.perf_counter() - start
    torch.set_num_threads(threads)
    return seconds


def one_round(engine: Serial | Processes, model: Model, method: Method) -> float:
    names = [f"C{i + 1}" for i in range(CLIENTS)]
    return timed(lambda: next(federate(model, method, engine, names, rounds=15, seed=0)))


def server_step(method: Method, cohort: Cohort) -> float:
    state = method.init(cohort.model)
    return timed(lambda: method.aggregate(Cohort(4, 15, cohort.model, cohort.updates, CLIENTS), state))


def densenet_cohort() -> Cohort:
    """Ten updates of DenseNet121's size, in one matrix as the engines leave them."""
    module, classifier = models.build("densenet121", 5, {})
    from feddraw.training import Network

    sent = Network(module, classifier).read()
    rng = np.random.default_rng(0)
    params = sent.params + 1e-3 * rng.standard_normal((CLIENTS, len(sent.params)), dtype=np.float32)
    buffers = np.repeat(sent.buffers[None], CLIENTS, axis=0)
    updates = [Update(i, Model(params[i], buffers[i], sent.counters, sent.layout), 100 + i, 10) for i in range(CLIENTS)]
    return Cohort(4, 15, sent, updates, CLIENTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20)
    blocks = parser.parse_args().blocks
    print(heading(blocks), f"torch {torch.__version__}", sep=", ")
    method = feddraw()
    trainer, model = workload(method)
    serial = Serial(trainer)
    bare = partial(bare_loop, trainer, model)
    show(
        "a round, serial ÷ the same steps in a bare loop",
        ratio(partial(one_round, serial, model, method), bare, blocks),
        "bar: at most 1.05",
    )
    workers = Processes(trainer, 2, [f"C{i + 1}" for i in range(CLIENTS)])
    try:
        speedup = ratio(partial(one_round, serial, model, method), partial(one_round, workers, model, method), blocks)
        show("a round, serial ÷ two workers, ten equal clients", speedup, "bar: at least 1.7")
    finally:
        workers.close()
    cohort = densenet_cohort()
    step = ratio(partial(server_step, method, cohort), partial(server_step, fedavg(), cohort), blocks)
    show("server time, FedDRAW ÷ FedAvg, ten updates of DenseNet121's size", step, "bar: at most 1.3")
    print(f"FedAvg's server step: {1e3 * min(server_step(fedavg(), cohort) for _ in range(5)):.0f} ms")


if __name__ == "__main__":
    main()
