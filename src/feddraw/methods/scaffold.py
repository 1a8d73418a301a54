"""SCAFFOLD: control variates take the client's own direction out of its steps. (Karimireddy et al.,
ICML 2020)

Each step follows g - c_i + c. Controls start at zero and cover parameters only.

From the paper: uniform weights, and c as the mean of all K clients' controls, whoever takes part.
Ours: other weights (`weights="samples"`, `feddraw+scaffold`). There c is the mean by the clients'
shares (see `standing_shares`), so that training comes to rest where the sum of the clients' losses
by these shares is smallest; c moved by the round's weights alone, as in other code, rests elsewhere
as soon as weights or cohorts change. It costs one more vector as large as the model on the way up,
the client's control before the round; uniform weights do without it.

The paper assumes plain SGD; under Adam a control learnt from moves (option II) is a normalised
direction, about a thousand times a gradient, so it is added to the step (`space="update"`) and
never to the gradient. Option I takes true gradients at the received model, at the price of one more
pass over the data, and goes into the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from feddraw import core
from feddraw.core import (
    Client,
    Cohort,
    Column,
    Correction,
    Job,
    Local,
    Memory,
    Method,
    Server,
    State,
    Update,
    Weights,
    standing_shares,
)
from feddraw.core.model import Model, Vector
from feddraw.errors import UserError, one_of, positive
from feddraw.methods.fedavg import BySize
from feddraw.methods.uniform import Uniform

Option = Literal["I", "II"]
Space = Literal["update", "gradient"]
Counting = Literal["uniform", "samples"]


@dataclass(frozen=True)
class ScaffoldClient(Local):
    option: Option = "II"
    space: Space = "update"

    keeps = {"control": "params"}
    secure = core.not_secure(
        "a control from moves is the move by its steps, and its sum beside the weighted one can"
        ' leave a single client\'s as their difference; option = "I" with space = "gradient" can'
    )
    held = "control"
    sends = {"control_change": "params"}

    def check(self, solver: core.Solver) -> None:
        if solver.optimizer == "adam" and (self.option, self.space) not in {
            ("II", "update"),
            ("I", "gradient"),
        }:
            raise UserError(
                f"SCAFFOLD's option {self.option} does not fit {self.space} space under Adam, where"
                " moves and gradients have different units: take option='II' with space='update',"
                " option='I' with space='gradient', or SGD"
            )

    def begin(self, job: Job, memory: Memory, client: Client) -> Correction:
        correction = job.broadcast["control"] - _control_of_client(memory, job.model)
        return (
            Correction(shift=correction)
            if self.space == "gradient"
            else Correction(drift=correction)
        )

    def end(
        self, job: Job, update: Update, memory: Memory, client: Client
    ) -> tuple[dict[str, Vector], Memory]:
        before = _control_of_client(memory, job.model)
        if self.option == "I":
            after = client.full_gradient()
        else:
            mean_step = (job.model.params - update.model.params) / (update.steps * client.solver.lr)
            after = before - job.broadcast["control"] + mean_step
        return {"control_change": after - before}, {"control": after}


@dataclass(frozen=True)
class ScaffoldClientByGradients(ScaffoldClient):
    """Option I: a control says nothing of the move."""

    option: Option = "I"

    secure = core.ONE_SUM  # the change of its control is masked as its move is


def _control_of_client(memory: Memory, model: Model) -> Vector:
    return memory["control"] if "control" in memory else np.zeros_like(model.params)


@dataclass(frozen=True)
class ScaffoldServer(Server):
    lr: float = 1.0

    secure = core.ONE_SUM
    streams = False

    def init(self, model: Model) -> State:
        return {"control": np.zeros_like(model.params)} | standing_shares.initial_shares()

    def broadcast(self, state: State) -> dict[str, Vector]:
        return {"control": state["control"]}

    def coefficients(self, cohort: Cohort, weights: Weights) -> Column:
        return self.lr * weights.values

    def step(self, cohort: Cohort, weights: Weights, state: State) -> tuple[Vector, State]:
        params, _ = super().step(cohort, weights, state)
        sums = (cohort, weights, lambda by, span: cohort.extra_sum("control_change", by, span))
        control, standing = standing_shares.update_standing_mean(state["control"], state, *sums)
        return params, {"control": control} | standing


def scaffold(
    server_lr: float = 1.0,
    option: Option = "II",
    space: Space = "update",
    weights: Counting = "uniform",
) -> Method:
    """Steps corrected by the difference between the common and the client's own direction."""
    rule = (
        ScaffoldClient
        if one_of("option", option, ("I", "II")) == "II"
        else ScaffoldClientByGradients
    )
    local = rule(option, one_of("space", space, ("update", "gradient")))
    weighting = (
        BySize() if one_of("weights", weights, ("uniform", "samples")) == "samples" else Uniform()
    )
    return Method(local, weighting, ScaffoldServer(positive("server_lr", server_lr)))
