"""Every reader of the package that opens a file somebody else may have made, with files that it reads."""

from __future__ import annotations

import functools
import gzip
import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from inspect import getmembers, isclass, isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from guided import Target, mutate
from PIL import Image
from safetensors.numpy import save
from torch import nn

import tiny
from feddraw import catalog, models, results, runs, study
from feddraw.cli import stats, weights
from feddraw.data import Labels, chexpert, folder, imaging, nih, npz, tables
from feddraw.errors import UserError
from feddraw.experiment import Experiment, complete
from feddraw.results import Checkpoint, RunFolder
from feddraw.scenarios import index_list
from run_folders import make_run

ONE_LINE = (UserError,)


def functions(*places: ModuleType | type, without: str = "") -> list[Callable[..., Any]]:
    """All functions and methods that are written in these modules or classes."""
    found: list[Callable[..., Any]] = []
    for place in places:
        for name, found_member in getmembers(place):
            member = getattr(found_member, "__wrapped__", getattr(found_member, "__func__", found_member))
            home = member.__module__ if hasattr(member, "__module__") else ""
            if isfunction(member) and home == (place.__name__ if isinstance(place, ModuleType) else place.__module__):
                found += [member] if name not in without.split() else []
            elif isclass(member) and isinstance(place, ModuleType) and home == place.__name__:
                found += functions(member, without=without)
    return [one for one in found if one.__code__.co_filename != "<string>"]  # those that dataclasses make


def named(place: Any, names: str) -> list[Callable[..., Any]]:
    return [getattr(found, "__func__", found) for name in names.split() for found in [getattr(place, name)]]


def written(data: bytes, path: Path) -> Path:
    path.write_bytes(data)
    return path


# ---------------------------------------------------------------------------------------------------- settings

EXPERIMENTS = [
    b'data = "phantom"\nscenario = "CHM-2"\nmethod = "feddraw"\nrounds = 3\n',
    b'rounds = 2\nseed = 1\n[data]\nname = "phantom"\nsize = 28\n[method]\nname = "fedavg+fedprox"\nmu = 0.5\n'
    b'[scenario]\nname = "dirichlet"\nclients = 3\n[training]\nlr = 0.1\n[gate]\nnorm = "refuse"\n',
    b'[model]\nname = "densenet121"\nweights = "none"\n[data]\nname = "folder"\npath = "x.csv"\nfindings = ["Edema"]\n',
    b'method = "package.module:function"\nscenario = "list.json"\nengine = "serial"\nholdout = 0.1\nfolds = 5\n',
]
EXPERIMENTS += [
    line.encode()
    for line in (
        "rounds = 0", "seed = -1", "holdout = 2.0", "folds = 1", "workers = -1", "method = 5", "training = 3", "x = 1",
        "method = {}", 'engine = "none"', "gate = {factor = 0}", "rounds = 1.5", "training = {lr = true}",
        'method = {name = "fedavg", mu = 1}', 'scenario = {name = "iid", clients = "x"}', "data = {name = 3}",
    )
]  # fmt: skip
STUDIES = [
    b"case = 3",
    b"seed = [0, 0]",
    b'preset = "paper"\nmethod = "fedavg"',
    b"preset = [1]",
    b'preset = "laptop"\nseed = [0, 1]\nmethod = ["feddraw", {name = "fedprox", mu = [0.1, 1]}]\n[[case]]\nrounds = 2',
    b'method = ["a:b", "fedavg"]\n[data]\nname = "phantom"\ntrain = [100, 200]\n[[case]]\nscenario = "iid"\n[[case]]\n',
    *EXPERIMENTS,
]
SETTINGS = [
    b"[data]\n",
    b"name = ",
    b"[[case]]\n",
    b"= []",
    b"= {}",
    b"[[[[[[[[",
    b'"""',
    b"1979-05-27",
    b'":"',
    b"gate.",
    b"\n",
]


def read_experiment(data: bytes, room: Path) -> object:
    return complete(Experiment.read(written(data, room / "experiment.toml")))


def read_study(data: bytes, room: Path) -> object:
    return study.read_study(written(data, room / "study.toml"))


# ---------------------------------------------------------------------------------------------------- tables

SHEETS = [
    b"path,Edema,Cardiomegaly,split,site,patient\na.png,1,0,train,X,p1\nb.png,0,,val,Y,p2\nc/d.png,-1,1,test,X,p3\n",
    b"image;label;hospital\n1.jpg;1;A\n2.jpg;0;B\n3.jpg;1;C\n4.jpg;0;A\n5.jpg;1;B\n",
    b"Path,Sex,Age,Frontal/Lateral,AP/PA,Atelectasis,Cardiomegaly,Consolidation,Edema,Pleural Effusion\n"
    b"CheXpert-v1.0-small/train/patient00001/study1/view1_frontal.jpg,F,68,Frontal,AP,1.0,0.0,,-1.0,\n"
    b"CheXpert-v1.0-small/train/patient00002/study1/view2_lateral.jpg,F,68,Lateral,,1.0,0.0,,-1.0,\n",
    '\ufeffpath,Ödem\n"a, b.png",1\n../up.png,0\n/etc/passwd,1\nc:\\x.png,0\n'.encode(),
]
TABLE_WORDS = [
    b",",
    b";",
    b"\t",
    b'"',
    b"\r\n",
    b"\0",
    b"Frontal/Lateral",
    b"Study",
    b"../",
    b"nan",
    b"-1",
    b"\xef\xbb\xbf",
]


def read_sheet(data: bytes, room: Path) -> object:
    packed = data[:1] == b"\x1f"
    return tables.read_labels(written(data, room / ("table.csv.gz" if packed else "table.csv")))


SHEETS += [
    b"path,Edema,Edema\na.png,1,1\n",
    b"x,y\n1,2\n",
    b"path\n",
    b"path,a\nb.png,maybe\nc.png,1\nd.png,0\n",
    b"path,a,split\nb.png,1,nowhere\n",
    b"path,a,set\na.png,1,train\nb.png,0,test\nc.png,1,train\nd.png,0,train\ne.png,1,train\n",
    b"path,a\n\n\nb.png,1\nb.png,0\n",
    b"Study,Frontal/Lateral,Atelectasis,Cardiomegaly,Consolidation,Edema,Pleural Effusion\n"
    b"test/patient1/study1,,1,0,,,\n",
]
NIH = [
    b"Image Index,Finding Labels,Follow-up #\n00000001_000.png,Cardiomegaly|Effusion,0\n00000002_000.png,No Finding,1\n"
]


def read_nih(data: bytes, room: Path) -> object:
    parts = {"00000001_000.png": 0, "00000002_000.png": 2, "../../secret.png": 0}
    table = nih.read(written(data, room / "Data_Entry_2017.csv"), parts, "paper", {"00000001_000.png": "a/b.png"})
    if any(path.startswith(("/", "..")) for path in table.paths):
        raise AssertionError(f"a path leaves the folder: {table.paths}")
    return table


STATISTICS = [
    b"scenario,method,auc,gm\nA,feddraw,.8,.7\nA,fedavg,.7,.6\nB,feddraw,.9,.8\nB,fedavg,.8,.9\n",
    b"scenario,method,seed,auc\nA,x,0,.1\nA,x,1,.2\nA,y,0,.3\nA,y,1,.3\n",
]


def read_statistics(data: bytes, room: Path) -> object:
    sheet = tables.Sheet.of(written(data, room / "results.csv"))
    columns = stats._value_columns(sheet, {"scenario", "method", "seed"})
    over = "seed" if "seed" in sheet.header else ""
    return [stats.read_table(sheet, "scenario", "method", column, over) for column in columns]


SIMILARITIES = [b"C1,C2\n1,1\n.5,1\n.2,1\n", b"0.9,0.8,1\n1,1,1\n"]


def read_similarities(data: bytes, room: Path) -> object:
    return weights.parse_similarity(str(written(data, room / "similarity.csv")))


def index_seeds() -> list[bytes]:
    names = {"C1": ["a.png", "b.png"], "C2": ["c.png"]}
    clients = [{"client": client, "images": images} for client, images in names.items()]
    document = {
        "scenario": "CHX-1",
        "seed": 0,
        "scale": 1.0,
        "sha256": index_list.fingerprint(names),
        "clients": clients,
    }
    return [json.dumps(document).encode(), b'{"clients": [], "scenario": "x", "scale": 1, "sha256": ""}']


def read_index(data: bytes, room: Path) -> object:
    labels = Labels(np.zeros((3, 1), np.uint8), ("Edema",), np.array(["a.png", "b.png", "c.png"]))
    return index_list.read(written(data, room / "list.json"), labels, 1.0 if data[-1:] == b"}" else 2.0)


def reshape_index(data: bytes, rng: random.Random) -> bytes:
    """Other clients and images under a right hash."""
    names = {f"C{i}": [rng.choice(("a.png", "b.png", "d.png")) for _ in range(rng.randrange(3))] for i in range(3)}
    clients = [{"client": client, "images": images} for client, images in names.items()]
    document = {
        "scenario": "s",
        "scale": rng.choice((1.0, 2.0)),
        "sha256": index_list.fingerprint(names),
        "clients": clients,
    }
    return (
        mutate(json.dumps(document).encode(), [data], [b"[]", b"{}", b"null"], rng)
        if rng.random() < 0.5
        else json.dumps(document).encode()
    )


# ---------------------------------------------------------------------------------------------------- run folders

FILES = (
    "experiment.toml",
    "weights.csv",
    "rounds.jsonl",
    "metrics.json",
    "environment.json",
    "predictions.safetensors",
)


@functools.cache
def finished(room: Path) -> Path:
    target = room / "finished"
    return make_run(target, images=4, rounds=2)


def run_seeds(room: Path) -> list[bytes]:
    """The first byte says which file it is."""
    place = finished(room)
    return [
        bytes([number]) + (place / name).read_bytes() for number, name in enumerate(FILES) if (place / name).is_file()
    ]


def read_folder(data: bytes, room: Path) -> object:
    place = finished(room)
    name = FILES[data[0] % len(FILES)] if data else FILES[0]
    before = (place / name).read_bytes() if (place / name).is_file() else None
    (place / name).write_bytes(data[1:])
    try:
        run = runs.read_run(place)
        runs.collect([place])
        if (found := run.predictions()) is not None:
            _ = found.by_model
        RunFolder(place).begin({}, resume=True, how=()) if name != "experiment.toml" else None
        return run
    finally:
        (place / name).write_bytes(before) if before is not None else (place / name).unlink()


def read_log(data: bytes, room: Path) -> object:
    """What resuming does with the lines of a run."""
    place = RunFolder(room / "resumed")
    place.path.mkdir(exist_ok=True)
    (place.ledger if data[:1] == b"\1" else place.rounds).write_bytes(data[1:])
    place.forget_from(1)
    return None


@functools.cache
def checkpoint_seeds(room: Path) -> list[bytes]:
    place = RunFolder(room / "checkpointed")
    place.path.mkdir(exist_ok=True)
    model = tiny.initial()
    state = {"weighting": {"angle": 0.5}, "server": {"h": model.params, "deep": {"er": 1}}}
    place.save_checkpoint(Checkpoint(model, state, 2, {0: {"last": model.params}, 1: {}}))
    return [place.checkpoint.read_bytes()]


def read_checkpoint(data: bytes, room: Path) -> object:
    place = RunFolder(room / "checkpointed")
    written(data, place.checkpoint)
    return place.load_checkpoint(tiny.initial().layout)


def reshape_checkpoint(data: bytes, rng: random.Random) -> bytes:
    """A file with a right digest and wrong content."""
    model = tiny.initial()
    arrays: dict[str, Any] = {
        "model.params": model.params,
        "model.buffers": model.buffers,
        "model.counters": model.counters,
    }
    name = rng.choice(list(arrays))
    arrays[name] = rng.choice(
        (arrays[name][:-1], arrays[name].astype(np.float64), arrays[name].astype(np.int8), arrays[name][None])
    )
    if rng.random() < 0.2:
        del arrays[name]
    document = {
        "next_round": 1,
        "state": {"weighting": {}, "server": {"h": {"array": "model.params"}}},
        "memory": {"0": {}},
    }
    key = rng.choice(list(document))
    document[key] = rng.choice(
        (None, -1, "x", [], {}, 1e999, {"a": {"array": "nowhere"}}, {"x": 1}, {"0": [1]}, 2**70, True)
    )
    document["blake2"] = results._digest(arrays, document)
    return bytes(save(arrays, {"feddraw": json.dumps(document)}))


# ---------------------------------------------------------------------------------------------------- arrays, pictures


def archive(**changes: Any) -> bytes:
    arrays = {f"{split}_labels": np.array([[0, 1], [1, 0]], np.uint8) for split in ("train", "val", "test")}
    arrays |= {f"{split}_images": np.zeros((2, 8, 8), np.uint8) for split in ("train", "val", "test")}
    file = io.BytesIO()
    np.savez_compressed(file, **{name: array for name, array in (arrays | changes).items() if array is not None})
    return file.getvalue()


def npz_seeds() -> list[bytes]:
    names = {f"{split}_names": np.array([f"{split}{row}" for row in range(2)]) for split in ("train", "val", "test")}
    fourteen = {f"{split}_labels": np.zeros((2, 14), np.int64) for split in ("train", "val", "test")}
    return [
        archive(),
        archive(classes=np.array(["Edema", "Mass"]), **names),
        archive(**fourteen),
        archive(**names | {f"{s}_patients": np.array(["1", "2"]) for s in ("train", "val", "test")}),
    ]


def more_archives() -> list[bytes]:
    nih_names = {f"{s}_names": np.array([f"0000000{i}_{k}.png" for k in range(2)]) for i, s in enumerate(npz.SPLITS)}
    wide = {f"{split}_labels": np.zeros((2, 3)) for split in npz.SPLITS}
    twice = {f"{split}_names": np.array(["a", "a"]) for split in npz.SPLITS}
    return [
        archive(test_labels=None),
        archive(train_images=None),
        archive(**nih_names),
        archive(classes=np.array(["a"]), **wide),
        archive(**wide),
        archive(**twice),
        archive(train_labels=np.full((2, 2), 7)),
        archive(classes=np.zeros((2, 2))),
        archive(val_names=np.array(["x"])),
        archive(train_images=np.zeros(2, np.uint8)),
        archive(train_labels=np.array([["a", "b"]])),
        archive(**{f"{split}_sites": np.array(["x"]) for split in npz.SPLITS}),
    ]


def bomb(room: Path) -> object:
    return read_npz(archive(train_images=np.zeros((2, 8192, 8192), np.uint8)), room)


def read_npz(data: bytes, room: Path) -> object:
    opened = npz.Archive.open(written(data, room / "archive.npz"))
    table = opened.table("paper")
    sizes = [opened.members[f"{split}_labels"].shape[0] for split in npz.SPLITS]
    return table, opened.images(sizes)


def reshape_npz(data: bytes, rng: random.Random) -> bytes:
    """One member changed inside an archive whose own checksums are right."""
    file = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
            chosen = rng.choice(old.namelist())
            for name in old.namelist():
                content = old.read(name)
                if name == chosen:
                    if rng.random() < 0.1:
                        continue
                    content = (
                        odd_array(rng)
                        if rng.random() < 0.5
                        else mutate(content, [content], [b"|O", b"<U4", b"(9,)", b"True"], rng)
                    )
                new.writestr(name, content)
    except Exception:
        return data[:-1]
    return file.getvalue()


def odd_array(rng: random.Random) -> bytes:
    """An array that is fine in itself, but not where it is put."""
    shape = rng.choice(((), (0,), (2,), (2, 2), (2, 14), (3, 2), (2, 8, 8), (2, 8, 7), (2, 8, 8, 1), (2, 8, 8, 3)))
    dtype = rng.choice(("u1", "i8", "f4", "f8", "U3", "?", "c8", "M8[s]", "S2", [("a", "u1")]))
    file = io.BytesIO()
    values = np.zeros(shape, dtype) if rng.random() < 0.8 else np.ones(shape, "f4") * np.nan
    np.save(file, values, allow_pickle=False)
    return file.getvalue()


def picture(kind: str, mode: str = "L") -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).convert(mode).save(file, kind)
    return file.getvalue()


def dicom() -> list[bytes]:
    if find_spec("pydicom") is None:
        return []
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, "1.2.840.10008.5.1.4.1.1.1"
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=["fuzz"])
    file = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    file.Rows = file.Columns = 8
    file.BitsAllocated, file.BitsStored, file.HighBit, file.SamplesPerPixel = 16, 12, 11, 1
    file.PixelRepresentation, file.PhotometricInterpretation = 0, "MONOCHROME1"
    file.RescaleSlope, file.RescaleIntercept, file.WindowCenter, file.WindowWidth = "1", "0", "100", "50"
    file.PixelData = np.arange(64, dtype=np.uint16).tobytes()
    out = io.BytesIO()
    file.save_as(out, enforce_file_format=True)
    return [out.getvalue()]


def read_picture(data: bytes, room: Path) -> object:
    return imaging.Recipe(8).apply(imaging.decode(written(data, room / "picture")))


def more_pictures() -> list[bytes]:
    """Too many pixels, other colours, deflated, and what ends at once."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    found = [bomb, b"", b"not a picture", b"\0" * 128 + b"DICM"]
    for file in dicom():
        deflated = file.replace(b"UI\x14\x001.2.840.10008.1.2.1\0", b"UI\x16\x001.2.840.10008.1.2.1.99")
        found += [
            deflated,
            file.replace(b"MONOCHROME1", b"MONOCHROME2"),
            file.replace(b"MONOCHROME1 ", b"RGB         "),
        ]
    return found


def weight_seeds() -> list[bytes]:
    found = []
    for state in (network().state_dict(), {"features.0.weight": 1, "x": [1, 2]}, [1, 2], {1: torch.zeros(2)}):
        file = io.BytesIO()
        torch.save(state, file)
        found.append(file.getvalue())
    return [*found, save({"a": np.zeros(2, np.float32)})]


def network() -> nn.Module:
    module = nn.Module()
    module.features = nn.Sequential(nn.Linear(3, 2))
    return module


def read_weights(data: bytes, room: Path) -> object:
    state = models._weights_file(written(data, room / "weights.pth"))
    models.load_imagenet(network(), state)
    return None


# ---------------------------------------------------------------------------------------------------- odd calls

Read = Callable[[Path], object]


def huge(name: str, read: Read) -> Read:
    """A file of zeros that is larger than the reader takes."""

    def call(room: Path) -> object:
        path = room / name
        with path.open("wb") as file:
            file.truncate(1 << 29)
        try:
            return read(path)
        finally:
            path.unlink()

    return call


def no_file(read: Read) -> list[Read]:
    return [read, lambda room: read(room / "nowhere"), lambda room: read(room / "zero\0byte")]


def trusted(read: Callable[..., object], data: bytes) -> Read:
    return lambda room: read(written(data, room / "trusted.toml"), trust=True)


def odd_folders(room: Path) -> object:
    """An unfinished run beside two that are the same, and folders with nothing to read."""
    for name, finished in {"one": True, "two": True, "three": False}.items():
        if not (room / "odd" / name).exists():
            make_run(room / "odd" / name, finished=finished)
    (room / "empty").mkdir(exist_ok=True)
    for wrong in (room / "empty", room / "nowhere", room / "odd" / "three"):
        with suppress(UserError):
            runs.collect([wrong])
    return runs.collect([room / "odd"])


def odd_log(room: Path) -> object:
    """A run with weights by piece of the model, and without a checkpoint."""
    place = RunFolder(room / "pieces")
    place.path.mkdir(exist_ok=True)
    place.pieces.write_text(",".join(results.PIECES) + "\n", encoding="utf-8")
    place.forget_from(0)
    return place.load_checkpoint(tiny.initial().layout)


def odd_similarities(room: Path) -> object:
    return [weights.parse_similarity(text) for text in ("", "1,.5", str(room / "no.csv"))]


# ---------------------------------------------------------------------------------------------------- all

PLAN = "read_study _combinations _choices _label _planned _require_different_names"
SHEET = "read_sheet column inside dealt guess place_of holding_paths holds_marks"
RUNS = "read_run _json _check _as_written number collect find"


def targets(room: Path) -> list[Target]:
    """Every reader; the files of some are made in this folder."""
    text = named(results, "read_text read_toml")
    lines = named(results, "_before read_csv read_jsonl read_text parse_json")
    settings = [
        *functions(catalog, without="outside names find call"),
        *named(Experiment, "of read __post_init__ section"),
    ]
    sheet = functions(tables, without="carve part_rows numbers examples read_labels policy policies")
    release = named(chexpert, "read_training read finding_columns images")
    logs = [bytes([place == "weights.csv"]) + (finished(room) / place).read_bytes() for place in FILES[1:3]]
    pictures = [
        picture("PNG"),
        picture("JPEG"),
        picture("PNG", "RGBA"),
        picture("PNG", "I;16"),
        *dicom(),
        *more_pictures(),
    ]
    archives = [*npz_seeds(), *more_archives()]
    return [
        Target(
            "experiment.toml", read_experiment, ONE_LINE, EXPERIMENTS, [*text, *settings, complete], SETTINGS,
            odd=[*no_file(Experiment.read), huge("x.toml", Experiment.read), trusted(Experiment.read, EXPERIMENTS[3])],
        ),
        Target(
            "study.toml", read_study, ONE_LINE, STUDIES, [*text, *named(study, PLAN)], SETTINGS,
            odd=[*no_file(study.read_study), huge("x.toml", study.read_study), trusted(study.read_study, STUDIES[5])],
        ),
        Target(
            "label tables", read_sheet, ONE_LINE, [*SHEETS, gzip.compress(SHEETS[0])],
            [*sheet, *named(folder, SHEET), *release], TABLE_WORDS,
            odd=[*no_file(tables.read_labels), huge("x.csv", tables.read_labels)],
        ),
        Target("ChestX-ray14's table", read_nih, ONE_LINE, NIH, [nih.read], TABLE_WORDS),
        Target(
            "tables of results", read_statistics, ONE_LINE, STATISTICS,
            [*named(stats, "read_table _number _value_columns"), *named(tables.Sheet, "rows column of")], TABLE_WORDS,
        ),
        Target(
            "similarities", read_similarities, ONE_LINE, SIMILARITIES, named(weights, "parse_similarity _numeric"),
            TABLE_WORDS, odd=[odd_similarities, huge("s.csv", lambda path: weights.parse_similarity(str(path)))],
        ),
        Target(
            "index lists", read_index, ONE_LINE, index_seeds(), named(index_list, "read _parsed"), [b"[]", b"null"],
            reshape_index, [huge("x.json", index_list._parsed), *no_file(index_list._parsed)],
        ),
        Target(
            "run folders", read_folder, ONE_LINE, run_seeds(room),
            [*named(runs, RUNS), *functions(runs.Ledger), *named(runs.Run, "predictions curve"), results.read_json],
            [b",", b"\n", b"{", b"[", b"null", b'"macro"'], odd=[odd_folders],
        ),
        Target(
            "logs on resume", read_log, ONE_LINE, logs, [RunFolder.forget_from, *lines], [b",", b'{"round": 0}\n'],
            odd=[odd_log, huge("weights.csv", results.read_csv), lambda room: results.read_text(room, 1)],
        ),
        Target(
            "checkpoints", read_checkpoint, ONE_LINE, checkpoint_seeds(room),
            [RunFolder.load_checkpoint, *named(results, "_read_checkpoint _repack _digest")], (), reshape_checkpoint,
            [odd_log],
        ),
        Target(
            "archives (.npz)", read_npz, ONE_LINE, archives,
            [*named(npz.Archive, "open read column table columns problems images"), npz.member], (), reshape_npz,
            [*no_file(npz.Archive.open), bomb],
        ),
        Target("pictures", read_picture, (imaging.BadImage,), pictures, functions(imaging, without="clahe")),
        Target(
            "weights files", read_weights, ONE_LINE, weight_seeds(), named(models, "_weights_file load_imagenet"),
            odd=no_file(models._weights_file),
        ),
    ]  # fmt: skip
