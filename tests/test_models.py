"""Networks by name: the compact one, DenseNet121 with its weights, and anyone's own."""

from __future__ import annotations

import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from feddraw.errors import UserError
from feddraw.models._saved_parameters import read_saved_parameters
from feddraw.training import network_by_name
from feddraw.training.network import Network


def test_the_compact_network_has_about_fifty_thousand_parameters() -> None:
    module, classifier = network_by_name.build_network("compact", 5, {})
    assert 45_000 < sum(p.numel() for p in module.parameters()) < 60_000
    assert classifier == "classifier"
    for pixels in (28, 32, 64, 128):
        assert module(torch.zeros(2, 1, pixels, pixels)).shape == (2, 5)


def test_the_plain_network_has_three_convolutions_at_every_size() -> None:
    module, classifier = network_by_name.build_network("plain", 5, {})
    assert 20_000 < sum(p.numel() for p in module.parameters()) < 30_000
    assert sum(isinstance(layer, nn.Conv2d) for layer in module.modules()) == 3
    assert classifier == "classifier"
    for pixels in (28, 32, 64):
        assert module(torch.zeros(2, 1, pixels, pixels)).shape == (2, 5)
    with pytest.raises(UserError, match=r"model\.width must be from 1 to 512"):
        network_by_name.build_network("plain", 5, {"width": 0})


def test_a_flat_model_holds_exactly_the_state_dict() -> None:
    module, classifier = network_by_name.build_network("compact", 5, {})
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    arrays = Network(module, classifier).read().arrays()
    assert list(arrays) == list(before)
    for name, tensor in before.items():
        np.testing.assert_array_equal(arrays[name], tensor.numpy())
        assert arrays[name].dtype == tensor.numpy().dtype


def test_a_buffer_of_four_dimensions_keeps_its_order() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 5))
    grid = torch.arange(24.0).view(1, 2, 3, 4)
    module.register_buffer("grid", grid)
    network = Network(module, "1")
    np.testing.assert_array_equal(network.read().arrays()["grid"], grid.numpy())
    network.load(network.read())
    assert torch.equal(module.get_buffer("grid"), grid)


class Masked(nn.Module):
    """A network with a mask of truth values, and a table of another type, among its buffers."""

    mask: torch.Tensor
    scale: torch.Tensor
    order: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(4, 2)
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.register_buffer("scale", torch.tensor([1.0, 2.0], dtype=torch.float64))
        self.register_buffer("order", torch.tensor([1, 0], dtype=torch.int32))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.flatten(1).masked_fill(~self.mask, 0.0)
        scores: torch.Tensor = self.classifier(pixels).double() * self.scale
        return scores[:, self.order]


def test_buffers_keep_their_type_through_training_and_loading() -> None:
    images = torch.arange(8.0).view(2, 1, 2, 2)
    module = Masked()
    expected = module(images).detach()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    network = Network(module, "classifier")
    assert torch.allclose(network(images)[0].double(), expected)
    model = network.read()
    for name, tensor in before.items():
        assert module.state_dict()[name].dtype == tensor.dtype
        np.testing.assert_array_equal(model.arrays()[name], tensor.numpy())
    model.counters[:] = [0, 1, 1, 1, 0, 1]
    model.buffers[:] = [3, 4]
    network.load(model)
    assert module.get_buffer("mask").tolist() == [False, True, True, True]
    assert module.get_buffer("scale").tolist() == [3.0, 4.0]
    assert module.get_buffer("order").tolist() == [0, 1]
    module.get_buffer("mask")[0] = True  # as a network may do in training
    assert network.read().arrays()["mask"].all()


def test_a_network_with_complex_numbers_is_refused() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    module.register_buffer("filter", torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(UserError, match="'filter' holds complex numbers"):
        Network(module, "1")


def test_the_flat_network_computes_what_the_module_did() -> None:
    module, classifier = network_by_name.build_network("compact", 5, {})
    images = torch.rand(4, 1, 32, 32)
    module.eval()
    expected = module(images)
    torch.testing.assert_close(Network(module, classifier)(images)[0], expected)


def test_the_classifier_of_ones_own_network_is_the_layer_with_one_output_per_finding() -> None:
    assert network_by_name.build_network("test_models:own", 3, {})[1] == "2"
    with pytest.raises(
        UserError, match=r"the classifier 1 has 4 output\(s\) for 3 finding\(s\): did you mean 2"
    ):
        network_by_name.build_network("test_models:own", 3, {"classifier": "1"})
    with pytest.raises(UserError, match="no parameters"):
        network_by_name.build_network("test_models:headless", 3, {})


def own(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Linear(4, classes))


def headless(classes: int) -> nn.Module:
    return nn.Flatten()


def test_a_network_that_uses_a_parameter_twice_is_refused() -> None:
    layer = nn.Linear(4, 4)
    with pytest.raises(UserError, match="uses one parameter in two layers"):
        Network(nn.Sequential(layer, layer, nn.Linear(4, 5)), "2")


def test_a_projection_stands_before_the_classifier() -> None:
    module, classifier = network_by_name.build_network("compact", 5, {"projection": 24})
    _, features = Network(module, classifier)(torch.rand(2, 1, 32, 32))
    assert classifier == "classifier.out"
    assert features.shape == (2, 24)


# -------------------------------------------------------------------------------------- DenseNet121

monai = pytest.importorskip(
    "monai", reason="MONAI is not installed: pip install 'feddraw[densenet]'"
)


@pytest.fixture(scope="module")
def densenet() -> nn.Module:
    return network_by_name.build_network("densenet121", 5, {})[0]


def torchvision_names(state: dict[str, Any]) -> dict[str, Any]:
    """The names in the file of weights: layers have no 'layers.', and 'norm.1' for 'norm1'."""
    found = {}
    for name, value in state.items():
        if "num_batches_tracked" in name or name.startswith("class_layers"):
            continue
        for kind in ("norm1", "norm2", "conv1", "conv2"):
            name = name.replace(f".layers.{kind}.", f".{kind[:-1]}.{kind[-1]}.")  # noqa: PLW2901
        found[name] = value
    return found | {
        "classifier.weight": torch.zeros(1000, 1024),
        "classifier.bias": torch.zeros(1000),
    }


def test_densenet121_has_five_outputs_and_seven_million_parameters(densenet: nn.Module) -> None:
    assert densenet(torch.zeros(2, 1, 32, 32)).shape == (2, 5)
    assert sum(p.numel() for p in densenet.parameters()) == 6_958_981
    assert Network(densenet, "class_layers.out").layout.classifier == "class_layers.out"


def test_every_tensor_but_the_head_is_loaded_from_a_file(
    densenet: nn.Module, tmp_path: Path
) -> None:
    state = {
        k: torch.full_like(v, 0.25)
        for k, v in torchvision_names(dict(densenet.state_dict())).items()
    }
    torch.save(state, tmp_path / "weights.pth")
    loaded, _ = network_by_name.build_network(
        "densenet121", 5, {"weights": str(tmp_path / "weights.pth")}, pretrained=True
    )
    body = {
        k: v
        for k, v in loaded.state_dict().items()
        if k.startswith("features.") and v.is_floating_point()
    }
    assert all((tensor == 0.25).all() for tensor in body.values())
    assert not (loaded.state_dict()["class_layers.out.weight"] == 0.25).any()


def test_weights_may_be_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "w.pth")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list(read_saved_parameters(Path("~/w.pth"))) == ["weight"]
    with pytest.raises(UserError, match=r"no weights file ~no-such-user/w\.pth"):
        read_saved_parameters(Path("~no-such-user/w.pth"))


def test_a_file_of_other_weights_is_refused(densenet: nn.Module, tmp_path: Path) -> None:
    state = torchvision_names(dict(densenet.state_dict()))
    del state["features.conv0.weight"]
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(UserError, match=r"1 of \d+ tensors differ, first features.conv0.weight"):
        network_by_name.build_network(
            "densenet121", 5, {"weights": str(tmp_path / "weights.pth")}, pretrained=True
        )
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(UserError, match="is not a file of weights"):
        network_by_name.build_network(
            "densenet121", 5, {"weights": str(tmp_path / "text.pth")}, pretrained=True
        )
    with pytest.raises(UserError, match="no weights file"):
        network_by_name.build_network("densenet121", 5, {"weights": "nowhere.pth"}, pretrained=True)


def test_offline_the_missing_weights_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", offline)
    with pytest.raises(UserError, match=r"model.weights = FILE") as caught:
        network_by_name.build_network("densenet121", 5, {}, pretrained=True)
    assert "\n" not in str(caught.value)


def test_a_saved_densenet121_loads_into_monais_own() -> None:
    """Anyone can use the model without this package: the grey image repeated three times gives the
    same logits.
    """
    from monai.networks.nets.densenet import DenseNet121

    ours, _ = network_by_name.build_network("densenet121", 5, {"weights": "none"})
    theirs = DenseNet121(spatial_dims=2, in_channels=3, out_channels=5)
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        same = torch.equal(ours.eval()(images), theirs.eval()(images.expand(-1, 3, -1, -1)))
    assert same
