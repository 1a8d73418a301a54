"""SCAFFOLD: control variates take the client's own direction out of its steps. (Karimireddy et al.,
ICML 2020)

Each step follows g - c_i + c. Controls start at zero and cover parameters only.

From the paper: uniform weights, and c as the mean of all K clients' controls, whoever takes part.
Ours: other weights (`weights="samples"`, `feddraw+scaffold`). There c is the mean by the clients'
shares (see `standing_shares`), so that training comes to rest where the sum of the clients' losses
by these shares is smallest; c moved by the round's weights alone, as in other code, rests elsewhere
as soon as weights or cohorts change. The row of a finding that not all clients label has shares of
its own, so that it rests where the losses of those who label it do. All this costs one more vector
as large as the model on the way up, the client's control before the round; uniform weights do
without it.

The paper assumes plain SGD; under Adam a control learnt from moves (option II) is a normalised
direction, about a thousand times a gradient, so it is added to the step (`space="update"`) and
never to the gradient. Option I takes true gradients at the received model, at the price of one more
pass over the data, and goes into the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from feddraw.core import (
    BySize,
    Client,
    Column,
    Correction,
    Equal,
    Extra,
    Holds,
    Job,
    Local,
    Memory,
    Method,
    Model,
    Solver,
    StandingMean,
    State,
    Sums,
    Update,
    Vector,
    Weighted,
    standing_shares,
)
from feddraw.errors import UserError, one_of, positive

Option = Literal["I", "II"]
Space = Literal["update", "gradient"]
Counting = Literal["uniform", "samples"]


@dataclass(frozen=True)
class ScaffoldClient(Local):
    option: Option = "II"
    space: Space = "update"

    keeps = {"control": "params"}
    held = "control"

    @property
    def sends(self) -> tuple[Extra, ...]:
        """Under option II a control is the move by its steps; under option I it is a gradient."""
        return (Extra("control_change", "params", holds=self._control_holds),)

    @property
    def _control_holds(self) -> Holds:
        return "gradients" if self.option == "I" else "moves"

    def check(self, solver: Solver) -> None:
        fitting = {("II", "update"), ("I", "gradient")}
        if solver.optimizer == "adam" and (self.option, self.space) not in fitting:
            raise UserError(
                f"SCAFFOLD's option {self.option} does not fit {self.space} space under Adam, where"
                " moves and gradients have different units: take option='II' with space='update',"
                " option='I' with space='gradient', or SGD"
            )

    def begin(self, job: Job, memory: Memory, client: Client) -> Correction:
        correction = job.broadcast["control"] - _control_of(memory, job.model)
        if self.space == "gradient":
            return Correction(shift=correction)
        return Correction(drift=correction)

    def end(
        self, job: Job, update: Update, memory: Memory, client: Client
    ) -> tuple[dict[str, Vector], Memory]:
        before = _control_of(memory, job.model)
        if self.option == "I":
            after = client.full_gradient()
        else:
            travelled = update.known_steps * client.solver.lr
            mean_step = (job.model.params - update.model.params) / travelled
            after = before - job.broadcast["control"] + mean_step
        return {"control_change": after - before}, {"control": after}


def _control_of(memory: Memory, model: Model) -> Vector:
    return memory["control"] if "control" in memory else np.zeros_like(model.params)


@dataclass(frozen=True)
class ScaffoldServer(StandingMean):
    lr: float = 1.0

    averages = "control_change"

    @property
    def scale(self) -> float:
        return self.lr

    def init(self, model: Model) -> State:
        return {"control": np.zeros_like(model.params)} | standing_shares.initial_shares()

    def broadcast(self, state: State) -> dict[str, Vector]:
        return {"control": state["control"]}

    def step(self, sums: Sums, state: State) -> tuple[Vector, State]:
        def change(by: Column, span: slice) -> Vector:
            return sums.extra_by("control_change", by, span)

        control, standing = standing_shares.update_standing_mean(
            state["control"], state, sums, change
        )
        return sums.total, {"control": control} | standing


def scaffold(
    server_lr: float = 1.0,
    option: Option = "II",
    space: Space = "update",
    weights: Counting = "uniform",
) -> Method:
    """Steps corrected by the difference between the common and the client's own direction."""
    one_of("option", option, ("I", "II"))
    one_of("space", space, ("update", "gradient"))
    one_of("weights", weights, ("uniform", "samples"))
    weighting = BySize() if weights == "samples" else Equal()
    server = ScaffoldServer(positive("server_lr", server_lr))
    return Method(Weighted(weighting, server), ScaffoldClient(option, space))
