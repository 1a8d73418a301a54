"""Does the last layer tell clients apart better than the whole network, as FedDRAW assumes?

Two clients fine-tune one trained model, one on images with an effusion, the other on images with a
large heart, both beside images without finding. Printed are the cosines between the two results,
and between their moves, for the classifier, for the rest of the network, and for all of it.

python examples/disjoint_findings.py
"""

from dataclasses import replace

import numpy as np

from feddraw.core import Job
from feddraw.core.schedules import cosine
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.settings import Experiment

SMALL = {
    "data.size": 28,
    "data.validation": 64,
    "data.test": 64,
    "data.train": 1500,
    "training.epochs": 3,
}
FIRST, SECOND = "Pleural Effusion", "Cardiomegaly"

setup = prepare(Experiment(scenario={"name": "iid", "clients": 2}).with_settings(SMALL))
labels, rows = setup.dataset.labels, setup.dataset.rows["train"]
values = {name: labels.values[rows, place] > 0 for place, name in enumerate(labels.findings)}
none = ~labels.values[rows].any(axis=1)

start_on, fine_tune_on = none & (rows % 2 == 0), none & (rows % 2 == 1)
shards = [
    rows[
        start_on | (values[FIRST] & values[SECOND]) | (rows % 3 == 0)
    ],  # the common start has seen everything
    rows[fine_tune_on | (values[FIRST] & ~values[SECOND])],
    rows[fine_tune_on | (values[SECOND] & ~values[FIRST])],
]
trainer = replace(setup.trainer, shards=shards)
start = trainer.work(Job(0, 1, 0, 0, setup.initial), {})[0].model
one, other = (
    trainer.work(Job(0, 1, client, client, start), {})[0].model.params for client in (1, 2)
)

head = setup.initial.layout.find("classifier")
body = np.ones(len(one), bool)
body[head] = False
print(f"{'':12}{'models':>8}{'moves':>8}")
for name, place in (("classifier", head), ("the rest", body), ("all", slice(None))):
    sent = start.params[place]
    models = cosine(one[None, place], other[place])[0]
    moves = cosine((one[place] - sent)[None], other[place] - sent)[0]
    print(f"{name:12}{models:8.4f}{moves:8.3f}")
