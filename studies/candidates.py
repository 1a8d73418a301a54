"""Four candidates for a rule without regret, registered in studies/atlas.md and tested there.

None was shown to be better than equal weights (docs/atlas.md), so they are no part of the package:
they are methods of one's own, as anyone writes them. From the top folder of a checkout:

    feddraw run --method studies.candidates:move_effects
    feddraw study studies/atlas-candidates.toml --trust --done docs/data/atlas-phantom.csv
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from feddraw.core import (
    LOSS,
    AfterFirstSum,
    ClientView,
    Cohort,
    Column,
    Facts,
    Layout,
    Measurement,
    Method,
    Model,
    Needs,
    Parts,
    Score,
    State,
    Vector,
    Weighted,
    Weighting,
    Weights,
    gram,
    weighted_sum,
)
from feddraw.core.schedules import LAM, Floats, beta, size_prior
from feddraw.errors import at_least, below_one, positive
from feddraw.methods.random_effects import LARGEST_RHO, RandomEffects, weights_by_rho

# ----------------------------------------------------------------------------- effects_then_uniform

NEVER = 1 << 20  # rounds between measurements: only round 0 is a multiple of it


@dataclass(frozen=True)
class EffectsThenUniform(AfterFirstSum):
    """Random effects early, equal weights late.

    rho is the mean of what `random_effects` measures before round `until`; afterwards nothing is
    measured. The weights are beta_t / beta_max times those of random effects, the rest equal, with
    FedDRAW's beta_t: 1 in round 0, 0 in the last.
    """

    measurement: Measurement = field(default_factory=Measurement)
    until: int = 3
    lam: float = LAM

    contributes = "gradients"

    @property
    def needs(self) -> Needs:
        return self._effects.needs

    @property
    def _effects(self) -> RandomEffects:
        return RandomEffects(self.measurement)

    def check(self, layout: Layout) -> None:
        self._effects.check(layout)

    def init(self) -> State:
        return {"rho": 0.0, "measured": 0}

    def broadcast(self, state: State) -> dict[str, Vector]:
        every = NEVER if state["measured"] >= self.until else 1
        return replace(self.measurement, every=every).as_broadcast()

    def contribute(self, client: ClientView, facts: Facts, place: int) -> Column:
        return self._effects.contribute(client, facts, place)

    def conclude(
        self, total: Column, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Column, Parts, State]:
        _, parts, _ = self._effects.conclude(total, facts, places, {})
        state = self._with_measured(parts["rho"], state)
        shown = {**parts, "rho": state["rho"], "beta": self._effects_share(facts)}
        return np.array([state["rho"]]), shown, state

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        """With each client's distance from the others, as in random effects."""
        weights, state = super().weigh(cohort, state)
        return replace(weights, parts={**weights.parts, **self._effects.distances(cohort)}), state

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        return self._log_weight(facts, place), {"prior": float(facts.priors[place])}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        log_weight = self._log_weight(facts, place)
        return log_weight, log_weight

    def _log_weight(self, facts: Facts, place: int) -> float:
        share = self._effects_share(facts)
        by_effects = weights_by_rho(facts.sizes, float(facts.concluded[0]))
        return math.log(share * by_effects[place] + (1 - share) / len(facts.sizes))

    def _effects_share(self, facts: Facts) -> float:
        """How much of the weights is that of random effects."""
        share = beta(facts.round, facts.rounds, lam=self.lam, beta_max=1.0)
        return 1.0 if share is None else share

    def _with_measured(self, rho: object, state: State) -> State:
        """With one more measurement, before round `until`."""
        count = state["measured"]
        if not (isinstance(rho, float) and count < self.until):
            return state
        return {"rho": (state["rho"] * count + rho) / (count + 1), "measured": count + 1}


def effects_then_uniform(
    until: int = 3, lam: float = LAM, batches: int = 16, batch_size: int = 16
) -> Method:
    """As random_effects in the first rounds, then equal weights."""
    measurement = Measurement(
        at_least("batches", batches, 2), at_least("batch_size", batch_size, 2)
    )
    rule = EffectsThenUniform(measurement, at_least("until", until, 1), positive("lam", lam))
    return Method(Weighted(rule))


# ------------------------------------------------------------------------------------- move_effects

SINGULAR = 1e-6  # of the determinant, as a part of the products that it is the difference of


def variance_equations(sizes: Floats, products: Floats) -> Floats:
    """Two rows (of sigma², of tau², the sum itself) from the scalar products of the clients' moves
    per step.
    """
    clients = len(sizes)
    total = sizes.sum()
    by_size = sizes @ np.diag(products) - sizes @ products @ sizes / total
    plain = np.trace(products) - products.sum() / clients
    first = [clients - 1, total - sizes @ sizes / total, by_size]
    second = [(1 - 1 / clients) * (1 / sizes).sum(), clients - 1, plain]
    return np.array([first, second])


def move_effects_rho(system: Floats) -> float:
    """rho; infinite where all that is seen is between clients."""
    (a, b, by_size), (c, d, plain) = system.tolist()
    determinant = a * d - b * c
    if abs(determinant) <= SINGULAR * (a * d + b * c):
        return 0.0
    within = (d * by_size - b * plain) / determinant
    between = (a * plain - c * by_size) / determinant
    if between <= 0:
        return 0.0
    return between / within if within > 0 else math.inf


@dataclass(frozen=True)
class EffectsOfMoves(Weighting):
    """How much clients differ is estimated from their classifiers' moves alone.

    A client's move per step m has a mean of its own with variance tau² between clients, and
    sampling adds sigma²/n. With N = sum n, the sums over clients Q_n = sum n |m - mean by size|²
    and Q_1 = sum |m - plain mean|² have the expectations (K - 1) sigma² + (N - sum n²/N) tau² and
    (1 - 1/K) sum(1/n) sigma² + (K - 1) tau². Both are added up over the rounds before `until`, and
    solved; rho = max(0, tau²) / sigma² then weighs as in `random_effects`, by 1 / (rho + 1/n).
    Clients of equal size leave the two equations alike, and have equal weights for any rho.
    """

    until: int = 3

    needs = Needs(sizes=True, layers="classifier", steps=True, cost="O(K² d) of one layer")

    def check(self, layout: Layout) -> None:
        layout.find("classifier")

    def init(self) -> State:
        return {"equations": np.zeros((2, 3)), "rounds": 0}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        sizes = cohort.sizes
        if state["rounds"] < self.until and len(sizes) > 1:
            sent = cohort.sent.params[cohort.sent.layout.find("classifier")].astype(np.float64)
            moves = cohort.layer("classifier") - sent
            moves_per_step = np.asarray(moves / cohort.steps[:, None])
            products = gram(moves_per_step, np.zeros(moves_per_step.shape[1]))
            state = {
                "equations": state["equations"] + variance_equations(sizes, products),
                "rounds": state["rounds"] + 1,
            }
        rho = move_effects_rho(state["equations"])
        parts: Parts = {"prior": size_prior(sizes), "rho": min(rho, LARGEST_RHO)}
        return Weights(weights_by_rho(sizes, rho), parts), state


def move_effects(until: int = 3) -> Method:
    """Between size and equal weights: the more the clients' moves differ, the more equal."""
    return Method(Weighted(EffectsOfMoves(at_least("until", until, 1))))


# ------------------------------------------------------------------------------ power_by_validation

POWERS = (1.0, 0.5, 0.0)  # of equal losses the first is taken


def shares_by_power(sizes: Floats, power: float) -> Floats:
    """n to a power, normalised; the largest size is 1 before, so that no power overflows."""
    return size_prior((sizes / sizes.max()) ** power)


@dataclass(frozen=True)
class ChosenPower(Weighting):
    """Size to a power that validation chooses at the end of every phase.

    Weights are by size to the power a, 1 at first. In the last round of a phase the averages of
    that round's updates with a = 0, 0.5 and 1 are compared by their loss on the server's images
    (`proxy`), and the best holds for the next phase. A choice in every round would follow the noise
    of a round.
    """

    phase: int = 4

    needs = Needs(
        sizes=True,
        layers="all",
        server_images=True,
        cost="three passes over the server's images in the last round of a phase",
    )

    def init(self) -> State:
        return {"power": 1.0}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        values = shares_by_power(cohort.sizes, state["power"])
        weights = Weights(values, {"prior": size_prior(cohort.sizes)})
        rounds_done = cohort.round + 1
        if rounds_done % self.phase == 0 and rounds_done < cohort.rounds:
            state = {"power": min(POWERS, key=lambda power: _validation_loss(cohort, power))}
        return weights, state


def _validation_loss(cohort: Cohort, power: float) -> float:
    assert cohort.proxy is not None
    values = shares_by_power(cohort.sizes, power)
    average = Model(
        params=cohort.averaged(values),
        buffers=weighted_sum(values, cohort.buffers),
        counters=np.max([update.model.counters for update in cohort.updates], axis=0),
        layout=cohort.sent.layout,
    )
    return cohort.proxy.loss(average)


def power_by_validation(phase: int = 4) -> Method:
    """Size to a power that the server's images choose, phase by phase."""
    return Method(Weighted(ChosenPower(at_least("phase", phase, 1))))


# ---------------------------------------------------------------------------------- size_until_slow


@dataclass(frozen=True)
class SizeUntilSlow(AfterFirstSum):
    """Size while training is fast, equal weights once it is slow: progress in place of a clock.

    The clients' losses at the sent model, averaged by size, must fall by the share `least` from one
    round to the next. The first time they do not, all clients count the same from that round on.
    """

    least: float = 0.05

    needs = Needs(sizes=True, asks=(LOSS,))

    def init(self) -> State:
        return {"loss": -1.0, "slow": 0}  # no loss yet

    def contribute(self, client: ClientView, facts: Facts, place: int) -> Column:
        return np.array([facts.priors[place] * client.number("loss")])

    def conclude(
        self, total: Column, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Column, Parts, State]:
        loss = float(total[0] / facts.priors[list(places)].sum())
        before = state["loss"]
        fell = before < 0 or loss <= (1 - self.least) * before
        slow = int(state["slow"] or not fell)
        return np.array([float(slow)]), {}, {"loss": loss, "slow": slow}

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        return self._log_weight(facts, place), {"prior": float(facts.priors[place])}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        log_weight = self._log_weight(facts, place)
        return log_weight, log_weight

    def _log_weight(self, facts: Facts, place: int) -> float:
        return 0.0 if facts.concluded[0] else math.log(facts.sizes[place])

    def parts_of(self, own: Column, facts: Facts, places: Sequence[int]) -> Parts:
        return {"prior": facts.priors[list(places)]}


def size_until_slow(least: float = 0.05) -> Method:
    """By size until the loss falls slowly, then equal weights."""
    return Method(Weighted(SizeUntilSlow(below_one("least", least))))
