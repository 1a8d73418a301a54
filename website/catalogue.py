"""The page of all methods, made from their files: `python -m website.catalogue` writes
docs/methods.md.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from feddraw import catalog
from feddraw.cli.listing import secure_in_words
from feddraw.core import why_not_first, why_not_second, why_not_streaming
from feddraw.experiment.method_by_name import (
    method_defaults,
    needs_of_method,
    place_in_mixture,
    without_required,
)

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"

KINDS = {
    "FedDRAW": ("feddraw", "feddraw_by_class", "feddraw_adaptive", "feddraw_variant"),
    "Controls and references": (
        "fedavg",
        "uniform",
        "size_then_uniform",
        "size_power",
        "inverse_steps",
        "centralised",
        "alone",
    ),
    "The baselines of FedDRAW's paper": (
        "fedprox",
        "fednova",
        "fedadp",
        "scaffold",
        "moon",
        "feddyn",
    ),
    "How much each client counts": (
        "ida",
        "ldawa",
        "fedsim",
        "feddisco",
        "fedlaw",
        "fedlbw",
        "fedawa",
        "random_effects",
    ),
    "By what a client contributes": ("fedce", "feddg_ga", "shapfed", "fedpidavg"),
    "Fairness between clients, or between groups of patients": (
        "fedeba",
        "fedcav",
        "qfedavg",
        "afl",
        "fedmgda",
        "gifair",
        "fairfed",
    ),
    "Models of one's own": ("fedbn", "ditto"),
    "How the server moves": ("fedavgm", "fedadam", "fedyogi", "fedadagrad"),
    "Against false updates": ("median", "trimmed_mean", "krum"),
}

HEAD = """# Methods

`python -m website.catalogue` generates this page from the methods' own files. Each method is one file in
`src/feddraw/methods/`; its text below gives the formula, the source and any difference from the source.
`feddraw list methods` prints the table, `--method NAME` runs one, and `--set method.SETTING=VALUE` changes a setting.

**Mixtures.** `A+B` combines the weighting of A with the local and server rules of B. Every method marked A combines
with every method marked B. A mixture that would lose the main part of one of its halves is refused with the reason: a
weighting as B, a method without its own weighting as A, weights that only fit their own server rule. Each half has its
own defaults. If both halves have the same setting, write it with the method's name: `--set method.fedadp.alpha=4`.

| | methods |
|---|---|
{mixtures}

Notation: p is a client's share of the images, x the model that is sent, y a client's result, D = y - x its move, K the
number of clients, d the number of parameters, F a client's loss at x. "Streams" means that a client's score needs only
its own update, so the server need not hold all updates at once. "Asks clients for" lists what clients send beside the
model; it is collected only for the methods that name it. With every method batch-norm statistics are averaged, never
extrapolated.
"""

MISSING = {
    "SimProx (Elniss et al., 2024)": (
        "combines pairwise cosine and Gaussian similarities with gradient norms; its "
        "equations were not accessible, so its weights could only be guessed"
    ),
    "FedLaw (Lu et al., 2025)": (
        "a closed form of Shapley values over a history of agreement; it was not accessible"
    ),
    "FedDRW (Li et al., 2025)": (
        "needs clusters of label distributions and features for long-tailed classes; their "
        "definition was not accessible"
    ),
    "FedEL (Wu et al., 2024)": (
        "an ensemble built after federated training, not an aggregation rule; neither code "
        "nor a full description was accessible"
    ),
    "SAFL, gradual annealing (Nguyen et al., 2021)": (
        "a client goes on from its own model or takes the common one, by an annealed "
        "probability; the formula of that probability was not accessible, and no code was found"
    ),
    "FedPAC (Xu et al., ICLR 2023)": (
        "combines the clients' classifiers for each client, by the means and variances of "
        "features within each class, pulls features to the classes' common centres, and trains "
        "classifier and body in turn; it is defined for classes that exclude each other, and an "
        "image can have several findings"
    ),
    "FedSaC (Yan et al., 2024)": (
        "the server makes a model for each client from those of similar and complementary "
        "clients; here it sends one model to all"
    ),
    "CFFL (Lyu et al., 2020)": (
        "the server holds back the more of each update from a client, the less that client "
        "contributes, so no two clients have the same model; here it sends one model to all, and "
        "what is held back at the client is not held back"
    ),
    "FedPerl (Bdair et al., 2021)": (
        "similar peers help each other to label images that have no labels; training here needs "
        "labels"
    ),
    "PAUSE (Peleg et al., 2025)": (
        "chooses who takes part in a round by privacy, delay and how often each was chosen, by a "
        "search with simulated annealing; it leaves weights as they are. `participation` draws "
        "clients by chance"
    ),
    "FedSA (Neto et al., 2022)": (
        "searches hyperparameters and participants with simulated annealing; it leaves weights as "
        "they are"
    ),
    "FedFQ (Li et al., 2024)": (
        "quantises updates, with bits assigned by simulated annealing; it is about what a message "
        "costs"
    ),
    "CosDefense (Yaldiz et al., 2023)": (
        "leaves out clients whose last layer stands apart by its cosine to the common one, as a "
        "defence; use `median`, `trimmed_mean`, `krum` or the gate instead"
    ),
    "CCVR (Luo et al., 2021)": (
        "trains the classifier again after federated training, on features drawn from each "
        "class's Gaussian; it is no aggregation rule"
    ),
    "Surgical aggregation (Kulkarni et al., 2024)": (
        "merges sites that label different findings; here each method does, in its own way: see "
        "[labels](labels.md)"
    ),
    "FedEBA+, its alignment": (
        "the switch between model and gradient alignment by an angle could not be verified; only "
        "the aggregation is implemented (`fedeba`)"
    ),
    "FedCav, its detection of attacks": (
        "not part of the weights; use `median`, `trimmed_mean`, `krum` or the gate instead"
    ),
    "FedPIDAvg, its shorter training": (
        "large clients take fewer steps, by a Poisson distribution of sizes; "
        '`training.work = "steps"` gives all clients the same number'
    ),
    "ShapFed, its models by contribution": (
        "each client mixes the common model with its own by its contribution; only the weights "
        "are implemented (`shapfed`)"
    ),
}

# The systems that FedDRAW's paper names, in its order, and the method that is each; those without
# one are in `MISSING`.
IN_THE_PAPER = {
    "FedAvg": "fedavg",
    "IDA": "ida",
    "FedProx": "fedprox",
    "SCAFFOLD": "scaffold",
    "FedNova": "fednova",
    "FedAdp": "fedadp",
    "L-DAWA": "ldawa",
    "SimProx": "",
    "FedSim": "fedsim",
    "FedSaC": "",
    "FedPAC": "",
    "FedDisco": "feddisco",
    "FedLBW": "fedlbw",
    "FedLAW": "fedlaw",
    "FedAWA": "fedawa",
    "FedLaw": "",
    "FedSA": "",
    "FedFQ": "",
    "PAUSE": "",
    "SAFL": "",
    "FedDyn": "feddyn",
    "MOON": "moon",
    "FedDRW": "",
    "FedEL": "",
    "q-FFL": "qfedavg",
    "Ditto": "ditto",
    "AFL": "afl",
    "FedMGDA+": "fedmgda",
    "GIFAIR-FL": "gifair",
    "FairFed": "fairfed",
    "CFFL": "",
    "FedEBA+": "fedeba",
    "FedCav": "fedcav",
    "FedBN": "fedbn",
    "Surgical aggregation": "",
    "FedPerl": "",
    "CCVR": "",
    "CosDefense": "",
}


def where_in_the_paper() -> list[str]:
    """A row for each system that the paper names."""
    rows = ["## The systems that FedDRAW's paper names\n", "| system | here |", "|---|---|"]
    for system, name in IN_THE_PAPER.items():
        place = f"[`{name}`](#{name})" if name else "[not implemented](#not-implemented)"
        rows.append(f"| {system} | {place} |")
    return [*rows, ""]


TAIL = "\n".join(
    [
        "## Not implemented\n",
        "| rule | why |",
        "|---|---|",
        *(f"| {k} | {v} |" for k, v in MISSING.items()),
        "",
    ]
)


def page() -> str:
    parts = [HEAD.replace("{mixtures}", mixtures())]
    placed = {name for names in KINDS.values() for name in names}
    others = tuple(name for name in catalog.names("methods") if name not in placed)
    for kind, names in (KINDS | {"Others": others}).items():
        if names:
            parts += [f"## {kind}\n", *(entry(name) for name in names)]
    return "\n".join([*parts, *where_in_the_paper(), TAIL])


def mixtures() -> str:
    """Which methods can be which half, and why some cannot."""
    made = {name: catalog.find("methods", name)() for name in catalog.names("methods")}
    rows = {"A, gives its weighting": "A", "B, gives its local and server rules": "B"}
    lines = [
        f"| {title} |"
        f" {', '.join(f'`{name}`' for name, method in made.items() if half in place_in_mixture(method))} |"
        for title, half in rows.items()
    ]
    alone = {name: method for name, method in made.items() if place_in_mixture(method) == "neither"}
    why = [
        f"`{name}` as A {why_not_first(one)}; as B it {why_not_second(one)}"
        for name, one in alone.items()
    ]
    return "\n".join([*lines, *(f"| neither | {reason} |" for reason in why)])


def entry(name: str) -> str:
    """A method's own words, and what it takes."""
    function = catalog.find("methods", name)
    method = function()
    about = inspect.getdoc(inspect.getmodule(function)) or ""
    settings = without_required(method_defaults(function))
    rows = {
        "in short": catalog.first_doc_line("methods", name),
        "looks at": needs_of_method(method),
        "asks clients for": ", ".join(method.asks) or "nothing",
        "client sends, keeps": (
            f"{', '.join(['model', *method.sends])}; {', '.join(method.local.keeps) or 'nothing'}"
        ),
        "cost of weighing, streams": (
            f"{method.needs.cost}, {'no' if why_not_streaming(method) else 'yes'}"
        ),
        "under secure sums": secure_in_words(method),
        "in a mixture A+B": place_in_mixture(method),
        "settings": ", ".join(f"`{key} = {value}`" for key, value in settings.items()) or "none",
    }
    table = ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items())]
    return "\n".join([f"### {name}\n", about, "", *table, ""])


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
