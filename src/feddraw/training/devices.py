"""Devices: which there are, what they are, and how exactly they compute.

`cpu:0`, `cpu:1` and so on are simulated devices on the processor: workers are placed on them,
images are kept or copied as for a GPU, and the bits are those of `cpu`.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from feddraw.errors import UserError
from feddraw.training.reproducibility import CUBLAS_WORKSPACE

DEVICE_NAME = re.compile(r"mps|(cpu|cuda)(:\d+)?")


@dataclass(frozen=True)
class WorkerPlace:
    """Where a worker trains, and how many bytes of images it may keep there; below zero: half of
    what is free.
    """

    device: str = "cpu"
    images: int = -1


def device_names(text: str, setting: str = "devices") -> list[str]:
    """The devices of a list such as cuda:0,cuda:1; `all` stays as it is."""
    names = [name.strip() for name in text.split(",") if text]
    if names == ["all"]:
        return names
    for name in names:
        if not DEVICE_NAME.fullmatch(name):
            raise UserError(
                f"{setting} must be cpu, cuda, cuda:1 or the like, or mps, not '{name}'"
            )
    return names


def devices_here(text: str, setting: str = "devices") -> list[str]:
    """The devices of such a list, each once and with its number, if this machine has them; `all`
    are its GPUs.
    """
    names = device_names(text, setting)
    if names == ["all"]:
        names = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        names = names or ["mps"] * torch.backends.mps.is_available()
        if not names:
            raise UserError(f"{setting} = all, but torch finds no GPU here: use cpu")
    whole = [str(require_device(name, setting)) for name in names]
    if len(set(whole)) < len(whole):
        raise UserError(
            f"{setting} = {text} names a device twice: set workers to start several on one"
        )
    return whole


def require_device(name: str, setting: str) -> torch.device:
    """A device, if this machine has it; `cuda` is the first GPU."""
    device = torch.device(name)
    gpus = (
        torch.cuda.device_count()
        if device.type == "cuda"
        else int(torch.backends.mps.is_available())
    )
    if device.type != "cpu" and (device.index or 0) >= gpus:
        raise UserError(f"{setting} is {name}, but torch finds no such device here: use cpu")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def cuda_software(tf32: bool) -> dict[str, Any]:
    """What computes on NVIDIA's GPUs, and how exactly."""
    cudnn = torch.backends.cudnn.version() or 0  # type: ignore[no-untyped-call]
    versions = {"driver": _nvidia_driver(), "cuda": torch.version.cuda or "", "cudnn": cudnn}
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
    return {**versions, "tf32": tf32, "cublas_workspace": workspace}


@cache
def _nvidia_driver() -> str:
    """The version of NVIDIA's driver, empty where it cannot be found out."""
    of_kernel = Path("/proc/driver/nvidia/version")
    try:
        if of_kernel.is_file():
            text = of_kernel.read_text()
        else:
            command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            text = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=20
            ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    version = re.search(r"\d{3,}\.\d+(\.\d+)?", text)
    return version[0] if version else ""
