"""A network of Hugging Face's `transformers` from a folder, with a linear classifier on its
features.

Nothing is downloaded, no code of the folder is run, and weights are read from safetensors only, as
`save_pretrained` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from feddraw.errors import UserError, in_one_line, one_of
from feddraw.models._saved_parameters import check_finite, warn_of_unused

POOLINGS = ("auto", "token", "mean")
INDEX = "model.safetensors.index.json"  # which file of several has a tensor
FROM_FOLDER = {"local_files_only": True, "trust_remote_code": False}


class PooledFeatures(nn.Module):
    """The network's features of an image, and a linear layer."""

    classifier_name = "classifier"

    def __init__(self, backbone: nn.Module, width: int, classes: int, pooling: str) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = nn.Linear(width, classes)
        self.pooling = pooling

    def forward(self, x: Tensor) -> Tensor:
        output = self.backbone(pixel_values=x.expand(-1, 3, -1, -1))
        logits: Tensor = self.classifier(self._pooled(output))
        return logits

    def _pooled(self, output: Any) -> Tensor:
        """One vector per image."""
        features = getattr(output, "pooler_output", None)
        if self.pooling == "auto" and features is not None:
            return torch.flatten(features, 1)
        hidden: Tensor = output.last_hidden_state
        if hidden.ndim == 4:  # of a convolutional network
            return hidden.mean(dim=(2, 3))
        return hidden.mean(dim=1) if self.pooling == "mean" else hidden[:, 0]


def huggingface(
    classes: int, folder: str = "", pooling: str = "auto", pretrained: bool = True
) -> nn.Module:
    """A network from a local folder of Hugging Face's (model.folder), with a linear classifier.

    `pooling` makes one vector of an image's tokens: "auto" takes the network's own pooler, or the
    class token where it has none, "token" that, "mean" the mean of all.
    """
    try:
        from transformers import AutoConfig, AutoModel
        from transformers.utils import logging
    except ImportError:
        raise UserError("huggingface needs transformers: pip install transformers") from None
    logging.set_verbosity_error()  # what is not loaded is said here, in one line
    logging.disable_progress_bar()
    one_of("model.pooling", pooling, POOLINGS)
    path = Path(folder).expanduser()
    if not folder or not (path / "config.json").is_file():
        raise UserError(
            f"no config.json in model.folder = '{folder}': give the folder that save_pretrained"
            " wrote, or that was downloaded from the hub"
        )
    if pretrained and not list(path.glob("*.safetensors")):
        raise UserError(
            f"no safetensors file in {folder}, and other files of weights may run code: write one"
            " with save_pretrained"
        )
    try:
        _refuse_code_of_others(path, folder)
        config = AutoConfig.from_pretrained(path, **FROM_FOLDER)
        if pretrained:
            _check_index(path, folder)
            backbone, loading = AutoModel.from_pretrained(
                path, use_safetensors=True, output_loading_info=True, **FROM_FOLDER
            )
            _check_kinds(path, backbone, folder)
            check_finite(backbone.float().state_dict(), folder)
            _check_loading(loading, len(backbone.state_dict()), folder, pooling)
        else:
            backbone = AutoModel.from_config(config, trust_remote_code=False)
    except UserError:
        raise
    except Exception as error:  # files of a stranger, read by code of a third party
        if "trust_remote_code" in str(error):  # its advice, which is no setting here
            raise UserError(
                f"{folder} needs code of its own (auto_map in config.json), which is not run: where"
                " you trust that, make the network in a function of yours and name it as model"
            ) from None
        raise UserError(
            f"{folder} is not a network of transformers: {in_one_line(error)}"
        ) from None
    sizes = getattr(config, "hidden_sizes", None)
    width = sizes[-1] if sizes else config.hidden_size
    return PooledFeatures(backbone.float(), width, classes, pooling)


def _refuse_code_of_others(path: Path, folder: str) -> None:
    """A configuration may name a kernel, which transformers would download and run."""
    for name in _implementations(json.loads((path / "config.json").read_text())):
        if "/" in name:
            raise UserError(
                f"config.json in {folder} asks for code from elsewhere ({name!r:.80}), which"
                " is not run: take that line out of it"
            )


def _implementations(written: Any, inside: bool = False) -> Iterator[str]:
    """All names that stand under a key such as attn_implementation."""
    if isinstance(written, str) and inside:
        yield written
    for key, value in written.items() if isinstance(written, dict) else ():
        yield from _implementations(value, inside or key.endswith("_implementation"))


def _check_index(path: Path, folder: str) -> None:
    """Of weights in several files the index says which has a tensor: it may name no other files."""
    index = path / INDEX
    if (path / "model.safetensors").is_file() or not index.is_file():
        return
    for name in set(json.loads(index.read_text())["weight_map"].values()):
        if not name.endswith(".safetensors") or Path(name).name != name:
            raise UserError(
                f"{INDEX} in {folder} names {name!r:.80}, which is no safetensors file there"
            )


def _check_kinds(path: Path, backbone: nn.Module, folder: str) -> None:
    """Refuse whole or complex numbers in the place of floats: they would be converted unscaled."""
    kinds: dict[str, str] = {}
    for file in path.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            kinds |= {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
    for name, tensor in backbone.state_dict().items():
        stored = [kind for there, kind in kinds.items() if f".{there}".endswith(f".{name}")]
        if tensor.is_floating_point() and stored and not stored[0].startswith(("F", "BF")):
            raise UserError(f"{folder}: {name} is {stored[0]} in the file, not of floats")


def _check_loading(loading: Mapping[str, Any], tensors: int, folder: str, pooling: str) -> None:
    """Refuse a folder that lacks tensors of the network; those of a pooler that is not used may
    lack.
    """
    missing = sorted(loading["missing_keys"])
    unpooled = [name for name in missing if not name.startswith("pooler.")]
    if missing and not unpooled and pooling == "auto":
        raise UserError(
            f"{folder} has no weights for the network's pooler ({missing[0]}): set model.pooling to"
            " token or mean"
        )
    different = unpooled + sorted(str(key[0]) for key in loading.get("mismatched_keys", ()))
    if different:
        raise UserError(
            f"{folder} has the weights of another network: {len(different)} of {tensors} tensors"
            f" differ, first {different[0]}"
        )
    unused = sorted(loading["unexpected_keys"])
    warn_of_unused(unused, tensors + len(unused), folder)
