"""Which layer gives the scores: found, checked against the findings, or asked for; networks of any
factory.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from feddraw import aggregate
from feddraw.core import Cohort, Entry, Layout, Model, Update
from feddraw.core.classifier_layer import candidate_classifiers, choose_classifier
from feddraw.errors import UserError
from feddraw.experiment.run_preparation import initial_model
from feddraw.experiment.running import run
from feddraw.methods.feddraw import feddraw
from feddraw.methods.feddraw_by_class import feddraw_by_class
from feddraw.results.run_collection import collect_runs
from feddraw.server.partial_labels import divided_among_labelling
from feddraw.training.network import Network
from feddraw.training.network_by_name import build_network
from small import small
from tiny import weighting_of

SIDE = 28


class Heads(nn.Module):
    """A body and several layers on top, of which some give the scores."""

    def __init__(self, classes: int, kind: str) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(1, 4, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ]
        self.body = nn.Sequential(*layers)
        self.kind = kind
        if kind in ("aux", "tuple", "tanh", "wide"):
            self.head = nn.Linear(4, classes + (kind == "wide"))
            self.aux = nn.Linear(4, classes)
        else:
            self.heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(classes))

    def forward(self, x: Tensor) -> Any:
        features = self.body(x)
        if self.kind in ("single", "backwards"):
            order = self.heads if self.kind == "single" else reversed(self.heads)
            return torch.cat([head(features) for head in order], dim=1)
        scores, other = self.head(features), self.aux(features)
        return {"tuple": (scores, other), "tanh": scores.tanh()}.get(self.kind, scores)


def heads(classes: int, kind: str = "aux") -> nn.Module:
    return Heads(classes, kind)


def coloured(num_classes: int = 7, spatial_dims: int = 3, **others: Any) -> nn.Module:
    """Like a factory of a library: three channels, its own names, and options that it passes on."""
    if others:
        raise TypeError(f"got an unexpected keyword argument '{min(others)}'")
    assert spatial_dims == 2
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, num_classes),
    )


def small_with(kind: str, **changes: Any) -> Any:
    return small(**{"model": "test_heads:heads", "model.kind": kind, "rounds": 2} | changes)


# -------------------------------------------------------------------------------------- which layer


@pytest.mark.parametrize("kind", ["aux", "tuple"])
def test_an_auxiliary_head_registered_last_is_not_the_classifier(kind: str) -> None:
    module, found = build_network("test_heads:heads", 5, {"kind": kind}, side=SIDE)
    assert found == "head"
    scores, features = Network(module, found)(torch.zeros(2, 1, SIDE, SIDE))
    assert scores.shape == (2, 5)
    assert features.shape == (2, 4)


def test_the_similarity_moves_though_an_auxiliary_head_is_registered_last() -> None:
    rounds = run(small_with("aux")).rounds
    assert all(entry.similarity < 1 - 1e-9 for entry in rounds[0].ledger)


def test_one_layer_per_finding_is_a_list_of_layers_in_the_order_of_the_scores() -> None:
    assert build_network("test_heads:heads", 3, {"kind": "single"}, side=SIDE)[1] == (
        "heads.0",
        "heads.1",
        "heads.2",
    )
    backwards = build_network("test_heads:heads", 3, {"kind": "backwards"}, side=SIDE)[1]
    assert backwards == ("heads.2", "heads.1", "heads.0")
    named = {"kind": "backwards", "classifier": ["heads.0", "heads.1", "heads.2"]}
    with pytest.raises(UserError, match="in another order than the network"):
        build_network("test_heads:heads", 3, named, side=SIDE)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("wide", {}, r"gives 6 score\(s\) per image for 5 finding\(s\)"),
        ("aux", {"classifier": "aux"}, "the scores do not depend on the layer 'aux'"),
        (
            "aux",
            {"classifier": "body.0"},
            r"has 4 output\(s\) for 5 finding\(s\): did you mean head, aux",
        ),
        ("aux", {"classifier": "haed"}, "no 'haed' among the layers: did you mean head"),
        (
            "single",
            {"classifier": "heads.4"},
            r"has 1 output\(s\) for 5 finding\(s\): did you mean heads.0 \+ heads.1",
        ),
        ("single", {"projection": 8}, "a projection needs one linear layer"),
        (
            "aux",
            {"classifier": 3},
            "model.classifier must be the name of a layer, or a list of names, not 3",
        ),
        (
            "aux",
            {"classifier": [1]},
            r"model.classifier must be the name of a layer, or a list of names, not \[1\]",
        ),
        (
            "aux",
            {"freeze": 3},
            "model.freeze must be the name of a layer, or a list of names, not 3",
        ),
        (
            "aux",
            {"freeze": [1]},
            r"model.freeze must be the name of a layer, or a list of names, not \[1\]",
        ),
        (
            "aux",
            {"projection": "abc"},
            "model.projection must be a width, or 0 for none, not 'abc'",
        ),
        ("aux", {"projection": -1}, "model.projection must be a width, or 0 for none, not -1"),
    ],
)
def test_a_wrong_classifier_or_width_is_one_line(
    kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        build_network("test_heads:heads", 5, {"kind": kind} | options, side=SIDE)
    assert "\n" not in str(caught.value)


def test_scores_that_pass_through_a_tanh_are_warned_of() -> None:
    with pytest.warns(
        UserWarning, match="the network changes the outputs of its classifier head, 5 outputs"
    ):
        build_network("test_heads:heads", 5, {"kind": "tanh"}, side=SIDE, pretrained=True)


# ----------------------------------------------------------------------------------- by shape alone


def params(**shapes: tuple[int, ...]) -> list[Entry]:
    return [Entry(name.replace("_", "."), "param", shape, 0) for name, shape in shapes.items()]


def test_shapes_decide_where_only_one_layer_can_give_the_scores() -> None:
    body = {"conv_weight": (8, 1, 3, 3), "norm_weight": (8,), "norm_bias": (8,)}
    fc = {"fc_weight": (5, 8), "fc_bias": (5,)}
    aux = {"aux_weight": (3, 8), "aux_bias": (3,)}
    assert choose_classifier(params(**body, **fc)) == "fc"
    assert choose_classifier(params(**body, **fc, **aux), outputs=5) == "fc"
    with pytest.raises(UserError, match="it may be fc, aux"):
        choose_classifier(params(**body, **fc, **aux))
    with pytest.raises(UserError, match=r"no layer has 4 output\(s\).*fc with 5"):
        choose_classifier(params(**body, **fc), outputs=4)
    hidden = {"a_weight": (6, 8), "a_bias": (6,), "b_weight": (5, 6), "b_bias": (5,)}
    assert choose_classifier(params(**body, **hidden)) == "b"
    singles = {f"{name}_weight": (1, 8) for name in "xyz"}
    assert candidate_classifiers(params(**body, **singles), 3) == [("x", "y", "z")]


def test_a_loop_of_ones_own_is_asked_for_the_classifier_too() -> None:
    sent = {"body.weight": np.ones((4, 3), np.float32), "body.scale": np.ones(4, np.float32)}
    sent |= {
        f"{name}.{part}": np.ones(s, np.float32)
        for name in ("fc", "aux")
        for part, s in (("weight", (2, 4)), ("bias", (2,)))
    }
    moved = {name: array + np.float32(0.1) for name, array in sent.items()}
    updates = [(moved, 10.0), (moved, 20.0)]
    with pytest.raises(UserError, match="it may be fc, aux"):
        aggregate(sent, updates, round=0, rounds=2)
    assert aggregate(sent, updates, round=0, rounds=2, classifier="fc", outputs=2).weights
    assert aggregate(sent, updates, round=0, rounds=2, method="fedavg").weights
    with pytest.raises(UserError, match=r"has 2 output\(s\) for 5"):
        aggregate(sent, updates, round=0, rounds=2, classifier="fc", outputs=5)


# ----------------------------------------------------------------------------------- several layers

SEVERAL = Layout.of(
    [
        ("second.weight", "param", (1, 3), "float32"),
        ("second.bias", "param", (1,), "float32"),
        ("body.weight", "param", (3, 2), "float32"),
        ("first.weight", "param", (2, 3), "float32"),
        ("first.bias", "param", (2,), "float32"),
    ],
    ("first", "second"),
)


def several(values: np.ndarray) -> Model:
    return Model(values.astype(np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), SEVERAL)


def test_rows_of_several_layers_belong_to_the_findings_in_their_order() -> None:
    assert SEVERAL.outputs == 3
    assert SEVERAL.rows_of(0) == [slice(10, 13), slice(16, 17)]
    assert SEVERAL.rows_of(1) == [slice(13, 16), slice(17, 18)]
    assert SEVERAL.rows_of(2) == [slice(0, 3), slice(3, 4)]
    assert SEVERAL.find("classifier").tolist() == [0, 1, 2, 3, *range(10, 18)]


def test_every_layer_of_the_classifier_counts_in_the_similarity_and_by_class() -> None:
    sent = several(np.ones(18))
    only_second, nothing = np.ones(18), np.ones(18)
    only_second[1] = -1.0
    updates = [Update(0, several(only_second), 10, 1), Update(1, several(nothing), 10, 1)]
    cohort = Cohort(1, 4, sent, updates, 2)
    method = feddraw()
    weights, _ = weighting_of(method).weigh(cohort, weighting_of(method).init())
    assert weights.parts["similarity"].tolist() == pytest.approx([10 / 12, 1.0])
    by_class = weighting_of(feddraw_by_class())
    pieces = by_class.weigh(cohort, by_class.init())[0].pieces
    assert [piece.name for piece in pieces] == ["class 0", "class 1", "class 2"]
    assert pieces[0].values[0] == pytest.approx(0.5)
    assert pieces[2].values[0] < 0.5  # the finding whose row turned round


def test_rows_that_a_client_does_not_label_are_left_out_in_the_right_layer() -> None:
    updates = [
        Update(0, several(np.full(18, 2.0)), 10, 1, labelled=np.array([True, True, False])),
        Update(1, several(np.full(18, 3.0)), 10, 1),
    ]
    cohort = Cohort(0, 4, several(np.ones(18)), updates, 2)
    weights = weighting_of(feddraw()).weigh(cohort, {})[0]
    (piece,) = divided_among_labelling(cohort, weights).pieces
    assert piece.name == "class 2"
    assert piece.spans == [slice(0, 3), slice(3, 4)]
    assert piece.values.tolist() == [0.0, 1.0]


def test_a_run_with_one_layer_per_finding_names_each_finding_once(tmp_path: Path) -> None:
    result = run(small_with("backwards", method="feddraw_by_class"), tmp_path / "run")
    findings = list(result.metrics.test.auc.per_class)
    assert {piece.piece for piece in result.rounds[-1].pieces} == set(findings)
    (found,) = collect_runs([tmp_path]).runs
    heads = ", ".join(f"heads.{number}" for number in reversed(range(len(findings))))
    assert found.environment["network"]["classifier"] == f"{heads}, {len(findings)} outputs"


# -------------------------------------------------------------------------------------- any factory


def test_a_factory_of_a_library_is_called_by_its_own_names_and_given_three_channels() -> None:
    module, found = build_network("test_heads:coloured", 5, {}, side=SIDE)
    assert found == "4"
    assert module(torch.zeros(2, 1, SIDE, SIDE)).shape == (2, 5)
    with pytest.raises(
        UserError,
        match="cannot be made of these settings: got an unexpected keyword argument 'depth'",
    ):
        build_network("test_heads:coloured", 5, {"depth": 3}, side=SIDE)


def test_a_network_without_batch_norm_trains(tmp_path: Path) -> None:
    experiment = small(model="test_heads:coloured", rounds=1)
    result = run(experiment, tmp_path / "run")
    assert math.isfinite(result.last.loss)
    assert len(result.last.model.buffers) == 0
    assert run(experiment, tmp_path / "run", resume=True).metrics.test.evaluated


@pytest.mark.parametrize("wrapped", ["plain", "state_dict", "module.", "safetensors"])
def test_weights_come_out_of_their_wrapping(wrapped: str, tmp_path: Path) -> None:
    state = {name: torch.full_like(v, 0.5) for name, v in heads(5).state_dict().items()}
    state["head.weight"] = torch.zeros(1000, 4)  # of another number of findings
    path = tmp_path / "weights.pth"
    if wrapped == "safetensors":
        from safetensors.torch import save_file

        path = tmp_path / "weights.safetensors"
        save_file(state, path)
    elif wrapped == "module.":
        torch.save(
            {"epoch": 3, "model": {f"module.{name}": value for name, value in state.items()}}, path
        )
    else:
        torch.save({"state_dict": state, "epoch": 3} if wrapped == "state_dict" else state, path)
    loaded, _ = build_network(
        "test_heads:heads", 5, {"weights": str(path)}, side=SIDE, pretrained=True
    )
    assert (loaded.state_dict()["body.0.weight"] == 0.5).all()
    assert not (loaded.state_dict()["head.weight"] == 0).any()
    with pytest.raises(
        UserError, match=r"of another network: \d of \d tensors differ, first 0.weight"
    ):
        build_network("test_heads:coloured", 5, {"weights": str(path)}, side=SIDE, pretrained=True)


def test_monais_resnet_and_vision_transformer_are_taken_as_they_are() -> None:
    pytest.importorskip("monai", reason="MONAI is not installed")
    nets = "monai.networks.nets.resnet:ResNet"
    tiny = {
        "block": "basic",
        "layers": [1, 1, 1, 1],
        "block_inplanes": [4, 8, 8, 8],
        "n_input_channels": 1,
    }
    module, found = build_network(nets, 5, tiny, side=32)
    assert found == "fc"
    assert "monai" in sys.modules
    assert initial_model(lambda: (module, found), 0).layout.outputs == 5
    pytest.importorskip("einops", reason="MONAI's vision transformer needs einops")
    vit = {"patch_size": 16, "hidden_size": 24, "mlp_dim": 24, "num_layers": 1, "num_heads": 2}
    options = vit | {"classification": True, "post_activation": ""}
    assert build_network("monai.networks.nets:ViT", 5, options, side=32)[1] == "classification_head"
    with pytest.raises(UserError, match=r"gives 4 × 24 score\(s\) per image"):
        build_network("monai.networks.nets:ViT", 5, vit, side=32)
