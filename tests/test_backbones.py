"""Networks that others trained: their files, checked tensor by tensor, and what the messages say
where something is missing.
"""

from __future__ import annotations

import json
import pickle
import re
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn

from feddraw.errors import UserError
from feddraw.experiment.running import run
from feddraw.models._saved_parameters import read_saved_parameters
from feddraw.models.densenet121 import TORCHVISION_NAME
from feddraw.system.machine import installed
from feddraw.training.network_by_name import build_network
from feddraw.training.partly_frozen_by_trial import build_partly_frozen
from small import small


def convolutions(classes: int, width: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 5, stride=3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, classes),
    )


def loaded(weights: Path, **options: Any) -> nn.Module:
    settings = {"weights": str(weights), **options}
    return build_network("test_backbones:convolutions", 3, settings, pretrained=True, side=16)[0]


def test_what_a_file_of_weights_has_beside_the_network_is_named(tmp_path: Path) -> None:
    state = convolutions(1000).state_dict()
    state["extra.weight"] = torch.zeros(2)
    torch.save(state, tmp_path / "w.pth")
    with pytest.warns(UserWarning, match=r"3 of 5 tensors are not used \(4.bias, 4.weight, extra"):
        module = loaded(tmp_path / "w.pth")
    assert torch.equal(module.state_dict()["0.weight"], state["0.weight"])


def test_weights_of_another_network_are_refused_with_the_first_tensor_that_differs(
    tmp_path: Path,
) -> None:
    torch.save(convolutions(3, width=6).state_dict(), tmp_path / "w.pth")
    with pytest.raises(
        UserError, match=re.escape("0.weight ((4, 1, 5, 5) here, (6, 1, 5, 5) in the file)")
    ):
        loaded(tmp_path / "w.pth")


def test_a_pickled_network_is_not_run_and_the_message_says_what_to_save(tmp_path: Path) -> None:
    torch.save(convolutions(3), tmp_path / "network.pt")
    with pytest.raises(UserError, match=r"would run its code.*torch.save\(network.state_dict"):
        loaded(tmp_path / "network.pt")


class Bomb:
    """Unpickled, it leaves a file behind."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("exploded"),)


def safetensors_header(**tensors: dict[str, Any]) -> bytes:
    """A file of such a header with 400 zeros behind it."""
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + bytes(400)


def state_with(**tensors: Tensor) -> dict[str, Tensor]:
    return {**convolutions(3).state_dict(), "0.weight": tensors["first"]}


def swollen(path: Path) -> None:
    """A small archive that unpacks to more than a file of weights may have."""
    torch.save(convolutions(3).state_dict(), path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/data/9", bytes(1 << 20))


FIRST = convolutions(3).state_dict()["0.weight"]
WHOLE = save(convolutions(3).state_dict())
HOSTILE_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "pickle.pth": (lambda p: p.write_bytes(pickle.dumps({"0.weight": Bomb()})), "run its code"),
    "archive.pth": (lambda p: torch.save({"0.weight": Bomb()}, p), "run its code"),
    "pickle.safetensors": (lambda p: p.write_bytes(pickle.dumps(Bomb())), "not a file of weights"),
    "cut.pth": (lambda p: p.write_bytes(b"PK\3\4" + bytes(60)), "not all of it"),
    "empty.pth": (lambda p: p.touch(), "not all of it"),
    "cut.safetensors": (lambda p: p.write_bytes(WHOLE[:-40]), "not all of it"),
    "long_header.safetensors": (
        lambda p: p.write_bytes(struct.pack("<Q", 1 << 60) + WHOLE[8:]),
        "header too large",
    ),
    "no_header.safetensors": (
        lambda p: p.write_bytes(struct.pack("<Q", 9) + b"{{{{{{{{{"),
        "invalid JSON",
    ),
    "beyond_its_end.safetensors": (
        lambda p: p.write_bytes(
            safetensors_header(a={"dtype": "F32", "shape": [100], "data_offsets": [0, 1 << 50]})
        ),
        "not a file of weights",
    ),
    "unknown_type.safetensors": (
        lambda p: p.write_bytes(
            safetensors_header(a={"dtype": "X9", "shape": [100], "data_offsets": [0, 400]})
        ),
        "unknown variant",
    ),
    "folder.pth": (lambda p: p.mkdir(), "no weights file"),
    "loop.pth": (lambda p: p.symlink_to(p), "no weights file"),
    "nan.pth": (lambda p: torch.save(state_with(first=FIRST * torch.nan), p), "not finite"),
    "nan.safetensors": (lambda p: save_file(state_with(first=FIRST * torch.nan), p), "not finite"),
    "overflow.pth": (lambda p: torch.save(state_with(first=FIRST.double() * 1e300), p), "finite"),
    "int8.pth": (
        lambda p: torch.save(state_with(first=FIRST.to(torch.int8)), p),
        "0.weight is int8, where the network has plain float32",
    ),
    "complex.safetensors": (
        lambda p: save_file(state_with(first=FIRST.to(torch.complex64)), p),
        "0.weight is complex64",
    ),
    "sparse.pth": (lambda p: torch.save(state_with(first=FIRST.to_sparse()), p), "sparse"),
    "meta.pth": (lambda p: torch.save(state_with(first=FIRST.to("meta")), p), "or empty"),
}


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_a_hostile_or_damaged_file_is_one_line_and_nothing_is_run_or_written(
    name: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDDRAW_CACHE", str(in_tmp / "cache"))
    write, line = HOSTILE_FILES[name]
    write(in_tmp / name)
    settings = {"model": "test_backbones:convolutions", "model.weights": name}
    experiment = small(**settings, **{"model.frozen": "body", "method": "fedavg"})
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(UserError, match=line) as refused:
            run(experiment, in_tmp / "run")
    assert not [str(warning.message) for warning in warned]
    assert "\n" not in str(refused.value)
    assert [path.name for path in in_tmp.iterdir()] == [name]


def test_an_archive_that_unpacks_to_more_than_its_limit_is_not_unpacked(tmp_path: Path) -> None:
    swollen(tmp_path / "w.pth")
    assert (tmp_path / "w.pth").stat().st_size < 1 << 17
    with pytest.raises(UserError, match="is larger than 0 MB"):
        read_saved_parameters(tmp_path / "w.pth", most=1 << 19)


def test_a_file_is_read_by_what_is_in_it_whatever_its_name(tmp_path: Path) -> None:
    state = convolutions(3).state_dict()
    save_file(state, tmp_path / "w.pth")
    assert torch.equal(loaded(tmp_path / "w.pth").state_dict()["0.weight"], state["0.weight"])


def test_numbers_of_other_types_are_converted_if_they_are_floats(tmp_path: Path) -> None:
    half = {name: tensor.half() for name, tensor in convolutions(3).state_dict().items()}
    save_file(half, tmp_path / "w.safetensors")
    weights = loaded(tmp_path / "w.safetensors").state_dict()["0.weight"]
    assert weights.dtype == torch.float32
    assert torch.equal(weights, half["0.weight"].float())


def test_a_network_of_another_package_is_named_by_its_factory() -> None:
    with pytest.raises(UserError, match=r"torchvision.models:resnet18 \(pip install torchvision\)"):
        build_network("resnet18", 3, {})
    with pytest.raises(UserError, match="did you mean compact"):
        build_network("compct", 3, {})
    if not installed("timm"):
        with pytest.raises(UserError, match=r"is it installed \(pip install timm\)"):
            build_network("timm:create_model", 3, {})


@pytest.mark.skipif(not installed("monai"), reason="needs MONAI")
def test_torchxrayvisions_densenet_is_loaded_from_its_state_dict(tmp_path: Path) -> None:
    build = partial(build_network, "xrv_densenet121", 3, {"weights": str(tmp_path / "xrv.pt")})
    network, classifier = build()
    ours = network.state_dict()
    theirs = {
        re.sub(r"(denselayer\d+)\.layers\.(norm|conv)([12])\.", r"\1.\2\3.", name): tensor + 0.01
        for name, tensor in ours.items()
        if name.startswith("features.") and tensor.is_floating_point()
    }
    assert all(TORCHVISION_NAME.search(n) for n in theirs if "denselayer" in n)
    theirs |= {"classifier.weight": torch.zeros(18, 1024), "op_threshs": torch.full((18,), 0.5)}
    torch.save(theirs, tmp_path / "xrv.pt")
    with pytest.warns(UserWarning, match=r"2 of \d+ tensors are not used \(classifier.weight, op"):
        module, _ = build(pretrained=True)
    name = "features.denseblock4.denselayer16.layers.conv2.weight"
    assert torch.equal(
        module.state_dict()[name],
        ours[name] * 0 + theirs["features.denseblock4.denselayer16.conv2.weight"],
    )
    assert classifier == "class_layers.out"
    part, _ = build_partly_frozen(build, "features.denseblock4", side=64)
    assert part.cut.shape == (512, 2, 2)
    del theirs["features.conv0.weight"]
    torch.save(theirs, tmp_path / "xrv.pt")
    with pytest.raises(UserError, match="not DenseNet121's weights: 1 of"):
        build(pretrained=True)


@pytest.mark.skipif(installed("transformers"), reason="transformers is installed")
def test_without_transformers_the_message_says_what_to_install() -> None:
    with pytest.raises(UserError, match="pip install transformers"):
        build_network("huggingface", 3, {"folder": "somewhere"})


class TokenNetwork(nn.Module):
    """A network of tokens as transformers has them: patches and a class token, then a pooler."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden_size, 14, stride=14)
        self.layer = nn.Linear(hidden_size, hidden_size)
        self.pooler = nn.Linear(hidden_size, hidden_size)

    def forward(self, pixel_values: Tensor) -> SimpleNamespace:
        tokens = self.patches(pixel_values).flatten(2).transpose(1, 2)
        tokens = torch.cat([tokens.mean(dim=1, keepdim=True), tokens], dim=1)
        hidden = tokens + torch.tanh(self.layer(tokens))
        return SimpleNamespace(last_hidden_state=hidden, pooler_output=self.pooler(hidden[:, 0]))


class StandInAutoModel:
    """What is used of transformers' AutoModel, on the same files."""

    @staticmethod
    def from_config(config: SimpleNamespace, trust_remote_code: bool) -> nn.Module:
        assert not trust_remote_code
        return TokenNetwork(config.hidden_size)

    @staticmethod
    def from_pretrained(path: Path, **options: Any) -> tuple[nn.Module, dict[str, Any]]:
        assert options["use_safetensors"]
        assert options["local_files_only"]
        network = StandInAutoModel.from_config(stand_in_config(path), options["trust_remote_code"])
        state = load_file(path / "model.safetensors")
        own = network.state_dict()
        for name in own.keys() & state.keys():
            own[name].copy_(state[name])
        return network, {
            "missing_keys": own.keys() - state.keys(),
            "unexpected_keys": state.keys() - own.keys(),
        }


def stand_in_config(path: Path, **_: Any) -> SimpleNamespace:
    config = json.loads((path / "config.json").read_text())
    if "auto_map" in config:
        raise ValueError("contains custom code.\nPlease pass the argument `trust_remote_code=True`")
    return SimpleNamespace(**config)


def stand_in_for_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers and what it needs take longer to install than all tests here; with it installed,
    the test below uses it.
    """
    package = ModuleType("transformers")
    package.AutoModel = StandInAutoModel  # type: ignore[attr-defined]
    package.AutoConfig = SimpleNamespace(from_pretrained=stand_in_config)  # type: ignore[attr-defined]
    silent = SimpleNamespace(set_verbosity_error=lambda: None, disable_progress_bar=lambda: None)
    utils = ModuleType("transformers.utils")
    utils.logging = silent  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", package)
    monkeypatch.setitem(sys.modules, "transformers.utils", utils)


def test_a_folder_in_hugging_faces_format_is_a_backbone_and_each_pooling_has_its_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_for_transformers(monkeypatch)
    monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8}')
    state = TokenNetwork(8).state_dict()
    save_file(state, folder / "model.safetensors")
    build = partial(build_network, "huggingface", 3, pretrained=True, side=28)
    images = torch.randn(2, 1, 28, 28)
    whole = TokenNetwork(8)
    whole.load_state_dict(state)
    hidden = whole(images.expand(-1, 3, -1, -1)).last_hidden_state
    expected = {
        "auto": whole.pooler(hidden[:, 0]),
        "token": hidden[:, 0],
        "mean": hidden.mean(dim=1),
    }
    for pooling, features in expected.items():
        module, classifier = build({"folder": str(folder), "pooling": pooling})
        assert classifier == "classifier"
        assert torch.allclose(module(images), module.classifier(features), atol=1e-6)
    settings = {"model": "huggingface", "model.folder": str(folder), "data.size": 28}
    for cut in ("body", "backbone.pooler"):
        experiment = small(**settings, **{"model.frozen": cut, "method": "fedavg", "rounds": 1})
        on_features = run(experiment).last.model.params
        on_images = run(experiment.with_settings({"data.features": "off"})).last.model.params
        assert abs(on_features - on_images).max() < 1e-5


def test_what_a_folder_in_hugging_faces_format_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_for_transformers(monkeypatch)
    build = partial(build_network, "huggingface", 3, pretrained=True, side=28)
    settings = {"folder": str(tmp_path)}
    with pytest.raises(UserError, match=r"no config\.json"):
        build(settings)
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(UserError, match="no safetensors file"):
        build(settings)
    state = TokenNetwork(8).state_dict()
    without_pooler = {name: state[name] for name in state if not name.startswith("pooler")}
    save_file(without_pooler, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"set model\.pooling to token or mean"):
        build(settings)
    build({**settings, "pooling": "token"})
    del without_pooler["layer.weight"]
    save_file(without_pooler, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"another network: 1 of 6 tensors differ, first layer"):
        build({**settings, "pooling": "token"})
    save_file({**state, "head.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.warns(UserWarning, match=r"1 of 7 tensors are not used \(head.weight"):
        build(settings)


def tokens_folder(folder: Path, **config: Any) -> Path:
    """A folder in Hugging Face's format."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8, **config}))
    save_file(TokenNetwork(8).state_dict(), folder / "model.safetensors")
    return folder


def refused_folder(folder: Path) -> str:
    with pytest.raises(UserError) as refused:
        build_network("huggingface", 3, {"folder": str(folder)}, pretrained=True, side=28)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_folder_that_asks_for_code_of_its_own_or_from_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_for_transformers(monkeypatch)
    code = tokens_folder(
        tmp_path / "code", auto_map={"AutoModel": "evil.C"}, trust_remote_code=True
    )
    assert "needs code of its own (auto_map in config.json), which is not run" in refused_folder(
        code
    )
    for number, config in enumerate(
        (
            {"attn_implementation": "someone/kernel"},
            {"vision_config": {"_attn_implementation": {"": "someone/kernel"}}},
        )
    ):
        folder = tokens_folder(tmp_path / str(number), **config)
        assert "asks for code from elsewhere ('someone/kernel')" in refused_folder(folder)


def test_a_folder_with_damaged_weights_or_other_files_of_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_for_transformers(monkeypatch)
    folder = tokens_folder(tmp_path / "tokens")
    file = folder / "model.safetensors"
    for content in (file.read_bytes()[:-40], pickle.dumps(Bomb()), b""):
        file.write_bytes(content)
        assert "is not a network of transformers: Error while" in refused_folder(folder)
    state = TokenNetwork(8).state_dict()
    first = state["layer.weight"]
    for tensor, line in (
        (first * torch.nan, "layer.weight has values that are not finite"),
        (first.to(torch.int8), "layer.weight is I8 in the file"),
    ):
        save_file({**state, "layer.weight": tensor}, file)
        assert line in refused_folder(folder)
    file.rename(folder / "part.safetensors")
    for name in ("part.bin", "../part.safetensors"):
        index = {"weight_map": dict.fromkeys(state, name)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        assert f"names '{name}', which is no safetensors file there" in refused_folder(folder)


@pytest.mark.skipif(not installed("transformers"), reason="needs transformers")
def test_transformers_runs_no_code_of_a_folder(in_tmp: Path) -> None:
    code = "from pathlib import Path\nPath('exploded').touch()\nclass C: pass\n"
    names = {"AutoConfig": "evil.C", "AutoModel": "evil.C"}
    folder = tokens_folder(in_tmp / "code", model_type="mine", auto_map=names)
    (folder / "evil.py").write_text(code)
    assert "needs code of its own" in refused_folder(folder)
    assert not Path("exploded").exists()


@pytest.mark.skipif(not installed("transformers"), reason="needs transformers")
def test_a_folder_of_hugging_faces_is_a_backbone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Dinov2Config, Dinov2Model, ViTConfig, ViTForImageClassification

    monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path / "cache"))
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    size = {"image_size": 28, "patch_size": 14}
    Dinov2Model(Dinov2Config(**shape, **size)).save_pretrained(tmp_path / "dino")
    for cut in ("body", "backbone.encoder.layer.1"):
        changes = {"model": "huggingface", "model.folder": str(tmp_path / "dino")}
        experiment = small(**changes, **{"model.frozen": cut, "method": "fedavg", "rounds": 1})
        on_features = run(experiment).last.model.params
        on_images = run(experiment.with_settings({"data.features": "off"})).last.model.params
        assert abs(on_features - on_images).max() < 1e-5
    ViTForImageClassification(ViTConfig(**shape, **size, intermediate_size=32)).save_pretrained(
        tmp_path / "vit"
    )
    build = partial(build_network, "huggingface", 3, pretrained=True, side=28)
    with pytest.raises(UserError, match=r"set model\.pooling to token or mean"):
        build({"folder": str(tmp_path / "vit")})
    with pytest.warns(UserWarning, match="tensors are not used"):
        build({"folder": str(tmp_path / "vit"), "pooling": "mean"})
    (tmp_path / "vit" / "config.json").write_text((tmp_path / "dino" / "config.json").read_text())
    with pytest.raises(UserError, match="weights of another network"):
        build({"folder": str(tmp_path / "vit")})
    (tmp_path / "dino" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no safetensors file"):
        build({"folder": str(tmp_path / "dino")})
    with pytest.raises(UserError, match=r"no config\.json"):
        build({"folder": str(tmp_path / "nowhere")})
