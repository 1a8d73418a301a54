"""FedDRAW's mathematics as pure functions: size prior, cosine similarity, two schedules, one
softmax.

A client's reputation xi = gamma_t p + (1 - gamma_t) s moves from its share of the data p to the
similarity s of its classifier to the global one; a softmax with inverse temperature beta_t turns
reputations into weights and relaxes to equal weights at the end. (M. Moradpour and A.-C. Hauschild,
FedDRAW.) The paper's algorithm, equation and figures disagree about the first round and the index
of beta; `Reading` says which is meant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feddraw.errors import UserError, positive, unknown

Reading = Literal["reported", "algorithm1", "equation"]
READINGS: tuple[Reading, ...] = get_args(Reading)
Floats = NDArray[np.float64]
Some = TypeVar("Some", float, Floats)

# The paper's values, the same in all its scenarios.
ETA = 0.4
LAM = 0.2
BETA_MAX = 3.0
ROUNDS = 15  # T

COSINE_BLOCK = 1 << 16  # columns at a time: a few clients' stay in the processor's cache


@dataclass(frozen=True, eq=False)
class WeightParts:
    """The weights of one round with every part that explains them."""

    prior: Floats  # p, over the clients counted this round
    similarity: Floats  # s
    gamma: float
    beta: float | None  # None where the prior itself is the weight
    reputation: Floats  # xi
    weight: Floats  # omega

    @property
    def parts(self) -> dict[str, Any]:
        """What explains the weight, by its name in the ledger."""
        return {name: part for name, part in vars(self).items() if name != "weight"}


def gamma(round: float, *, eta: float = ETA, reading: Reading = "reported") -> float:
    """The trust left in size: 1 at first, then decaying."""
    elapsed = round + 1 if reading == "equation" else round
    return math.exp(-eta * elapsed)


def beta(
    round: float,
    rounds: int,
    *,
    lam: float = LAM,
    beta_max: float = BETA_MAX,
    reading: Reading = "reported",
) -> float | None:
    """The softmax's inverse temperature, late to fall; None in a round that takes the prior as it
    is.
    """
    if round == 0 and reading != "algorithm1":
        return None
    left = rounds - round if reading == "algorithm1" else rounds - 1 - round
    return beta_max * -math.expm1(-lam * left)


def gamma_and_beta(
    round: float,
    rounds: int,
    eta: float = ETA,
    lam: float = LAM,
    beta_max: float = BETA_MAX,
    reading: Reading = "reported",
) -> tuple[float, float | None]:
    """gamma and beta of a round."""
    return gamma(round, eta=eta, reading=reading), beta(
        round, rounds, lam=lam, beta_max=beta_max, reading=reading
    )


@dataclass(frozen=True)
class Annealing:
    """FedDRAW's two schedules with their settings."""

    eta: float = ETA
    lam: float = LAM
    beta_max: float = BETA_MAX
    reading: Reading = "reported"

    def __post_init__(self) -> None:
        check_schedule_settings(
            eta=self.eta, lam=self.lam, beta_max=self.beta_max, reading=self.reading
        )

    def at(self, round: float, rounds: int) -> tuple[float, float | None]:
        """gamma and beta of a round."""
        return gamma_and_beta(round, rounds, self.eta, self.lam, self.beta_max, self.reading)


def size_prior(sizes: ArrayLike) -> Floats:
    """Each client's share of the images."""
    counts = np.asarray(sizes, dtype=np.float64)
    return np.asarray(counts / counts.sum())


def cosine(vectors: NDArray[Any], reference: NDArray[Any]) -> Floats:
    """Cosine of each row with the reference, in float64; 0 where a norm is zero."""
    dots = np.zeros(len(vectors))
    squares = np.zeros(len(vectors))
    square = 0.0
    for start in range(0, len(reference), COSINE_BLOCK):
        block = vectors[:, start : start + COSINE_BLOCK].astype(np.float64)
        along = reference[start : start + COSINE_BLOCK].astype(np.float64)
        dots += block @ along
        squares += np.einsum("kd,kd->k", block, block)
        square += float(along @ along)
    norms = np.sqrt(squares) * math.sqrt(square)
    return np.clip(np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0), -1.0, 1.0)


def softmax(scores: Floats, beta: float) -> Floats:
    """exp(beta · score), normalised; no beta is too large, because the largest score is subtracted
    first.
    """
    with np.errstate(over="ignore"):
        shifted = np.exp(beta * (scores - scores.max()))
    return np.asarray(shifted / shifted.sum())


def weights_and_parts(
    sizes: ArrayLike, similarities: ArrayLike, gamma: float, beta: float | None
) -> WeightParts:
    """The weights, and all that they are made of, for a round's gamma and beta; without a beta,
    they are the prior.
    """
    prior = size_prior(sizes)
    similarity = np.asarray(similarities, dtype=np.float64)
    xi = reputation(prior, similarity, gamma)
    return WeightParts(
        prior, similarity, gamma, beta, xi, prior if beta is None else softmax(xi, beta)
    )


def reputation(prior: Some, similarity: Some, gamma: float) -> Some:
    """xi, of one client or of many: trust in size, then in similarity."""
    return gamma * prior + (1.0 - gamma) * similarity


def most_moved_by_similarity(gap: float, gamma: float, beta: float | None) -> float:
    """The largest share of the weight that similarities can move in a round with this gamma and
    beta: a bound on the total variation between the weights and those of equal similarities.

    `gap` is the largest similarity minus the smallest. The scores change by beta (1 - gamma) s, a
    range of L = beta (1 - gamma) gap, and scores that differ within a range of L change a softmax
    by at most tanh(L / 4), whatever the sizes are (docs/similarity.md has the proof). A round that
    takes the prior (no beta) looks at no similarity.
    """
    if beta is None:
        return 0.0
    return math.tanh(beta * (1.0 - gamma) * gap / 4)


def weights(
    *,
    round: int,
    rounds: int,
    sizes: Sequence[float],
    similarities: Sequence[float] | None = None,
    eta: float = ETA,
    lam: float = LAM,
    beta_max: float = BETA_MAX,
    reading: Reading = "reported",
) -> Floats:
    """How much each client counts in one round.

    Examples:
        >>> sizes, similarities = [20000, 5000, 5000, 5000], [0.91, 0.99, 0.99, 0.98]
        >>> weights(round=4, rounds=15, sizes=sizes, similarities=similarities).round(3)
        array([0.263, 0.248, 0.248, 0.242])
    """
    check_schedule_settings(rounds=rounds, eta=eta, lam=lam, beta_max=beta_max, reading=reading)
    if round not in range(rounds):
        raise UserError(f"round {round} is not among the rounds 0 to {rounds - 1}")
    counts, values = _schedule_inputs(sizes, similarities)
    return weights_and_parts(
        counts, values, *gamma_and_beta(round, rounds, eta, lam, beta_max, reading)
    ).weight


def schedule(
    *,
    rounds: int,
    sizes: Sequence[float],
    similarities: Sequence[float] | Sequence[Sequence[float]] | None = None,
    eta: float = ETA,
    lam: float = LAM,
    beta_max: float = BETA_MAX,
    reading: Reading = "reported",
    clients: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """The weights and their parts, one element per round: the rows of `feddraw weights --json`.

    `similarities` has one number per client, or one such row per round; left out, all clients are
    fully similar.
    """
    check_schedule_settings(rounds=rounds, eta=eta, lam=lam, beta_max=beta_max, reading=reading)
    names = list(clients) if clients is not None else [f"C{i + 1}" for i in range(len(sizes))]
    if len(names) != len(sizes):
        raise UserError(f"{len(names)} names for {len(sizes)} clients: give one per client")
    rows = []
    for t, similarity in enumerate(_similarities_by_round(rounds, similarities)):
        counts, values = _schedule_inputs(sizes, similarity)
        parts = weights_and_parts(
            counts, values, *gamma_and_beta(t, rounds, eta, lam, beta_max, reading)
        )
        columns = zip(
            names, sizes, parts.prior, parts.similarity, parts.reputation, parts.weight, strict=True
        )
        keys = ("client", "size", "prior", "similarity", "reputation", "weight")
        table = [
            dict(zip(keys, (name, size, *map(float, rest)), strict=True))
            for name, size, *rest in columns
        ]
        rows.append({"round": t, "gamma": parts.gamma, "beta": parts.beta, "clients": table})
    return rows


def check_schedule_settings(
    *, eta: float, lam: float, beta_max: float, reading: str, rounds: int = 1
) -> None:
    """Refuse what the formulas do not allow."""
    if not isinstance(rounds, int | np.integer) or rounds < 1:
        raise UserError(f"rounds must be a whole number of at least 1, not {rounds}")
    for name, value in (("eta", eta), ("lam", lam), ("beta_max", beta_max)):
        positive(name, value)
    if reading not in READINGS:
        raise unknown("readings", reading, READINGS)


def _similarities_by_round(rounds: int, similarities: Any) -> list[Any]:
    if similarities is None or not any(np.ndim(row) for row in similarities):
        return [similarities] * rounds
    if len(similarities) != rounds:
        raise UserError(
            f"{len(similarities)} rows of similarities for {rounds} rounds: give one per round"
        )
    return list(similarities)


def _schedule_inputs(
    sizes: Sequence[float], similarities: Sequence[float] | None
) -> tuple[Floats, Floats]:
    counts = np.asarray(sizes, dtype=np.float64)
    if counts.ndim != 1 or counts.size == 0:
        raise UserError("sizes must be a list with one number per client")
    if not (np.isfinite(counts).all() and (counts > 0).all()):
        raise UserError(f"sizes must be positive numbers, not {counts.tolist()}")
    values = (
        np.ones(counts.size) if similarities is None else np.asarray(similarities, dtype=np.float64)
    )
    if values.shape != counts.shape:
        raise UserError(
            f"{values.size} similarities for {counts.size} clients: give one per client"
        )
    if not (np.abs(values) <= 1.0).all():
        raise UserError(f"similarities are cosines, between -1 and 1, not {values.tolist()}")
    return counts, values
