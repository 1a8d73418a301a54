"""Every reader of the package that opens a file somebody else may have made, with files that it
reads.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import math
import os
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
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
from feddraw import catalog
from feddraw.analysis import explain_weights, tidy_results, weights_document, weights_in_words
from feddraw.cli import weights
from feddraw.core import participation
from feddraw.data import (
    corruption,
    csv_sheet,
    finding_names,
    image_cache,
    imaging,
    label_cells,
    label_table,
    npz_archive,
    own_tables,
    table_columns,
)
from feddraw.data import dataset_by_name as data_sets
from feddraw.data.dataset import Labels
from feddraw.data.datasets import chexpert, nih
from feddraw.data.scenarios import index_list
from feddraw.errors import UserError
from feddraw.experiment import class_tables, init_own_data, own_images, verify
from feddraw.experiment import inspect_own_data as inspection
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.settings import Experiment
from feddraw.models import densenet121
from feddraw.models._saved_parameters import read_saved_parameters
from feddraw.report import (
    ReportSettings,
    files,
    html,
    latex,
    markdown,
    patients,
    section_order,
    statistics,
    trainings,
)
from feddraw.report.blocks import all_pictures
from feddraw.report.sections import client_gains
from feddraw.results import (
    checkpoint,
    ledger_table,
    predictions,
    recorded_run,
    run_collection,
    run_reader,
)
from feddraw.results.checkpoint import Checkpoint
from feddraw.results.environment import environment
from feddraw.results.run_folder import RunFolder
from feddraw.study import plan, results_table
from feddraw.system import file_reading
from feddraw.text import parse_pairs
from run_folders import FINDINGS, make_run

ONE_LINE = (UserError,)


def functions(*places: ModuleType | type, without: str = "") -> list[Callable[..., Any]]:
    """All functions and methods that are written in these modules or classes."""
    found: list[Callable[..., Any]] = []
    for place in places:
        for name, found_member in getmembers(place):
            member = getattr(
                found_member, "__wrapped__", getattr(found_member, "__func__", found_member)
            )
            home = member.__module__ if hasattr(member, "__module__") else ""
            if isfunction(member) and home == (
                place.__name__ if isinstance(place, ModuleType) else place.__module__
            ):
                found += [member] if name not in without.split() else []
            elif isclass(member) and isinstance(place, ModuleType) and home == place.__name__:
                found += functions(member, without=without)
    return [
        one for one in found if one.__code__.co_filename != "<string>"
    ]  # those that dataclasses make


def named(place: Any, names: str) -> list[Callable[..., Any]]:
    return [
        getattr(found, "__func__", found)
        for name in names.split()
        for found in [getattr(place, name)]
    ]


def written(data: bytes, path: Path) -> Path:
    path.write_bytes(data)
    return path


# ----------------------------------------------------------------------------------------- settings

EXPERIMENTS = [
    b'data = "phantom"\nscenario = "CHM-2"\nmethod = "feddraw"\nrounds = 3\n',
    (
        b'rounds = 2\nseed = 1\n[data]\nname = "phantom"\nsize = 28\n[method]\nname ='
        b' "fedavg+fedprox"\nmu = 0.5\n[scenario]\nname = "dirichlet"\nclients = 3\n[training]\nlr'
        b' = 0.1\n[gate]\nnorm = "refuse"\n'
    ),
    (
        b'[model]\nname = "densenet121"\nweights = "none"\n[data]\nname = "folder"\npath ='
        b' "x.csv"\nfindings = ["Edema"]\n'
    ),
    (
        b'method = "package.module:function"\nscenario = "list.json"\nengine = "serial"\nholdout ='
        b" 0.1\nfolds = 5\n"
    ),
]
EXPERIMENTS += [
    line.encode()
    for line in (
        "rounds = 0",
        "seed = -1",
        "holdout = 2.0",
        "folds = 1",
        "workers = -1",
        "method = 5",
        "training = 3",
        "x = 1",
        "method = {}",
        "proxy = 1",
        "stream = true",
        'stream = true\nmethod = "krum"',
        "gate = {x = 1}",
        "stream = true\ngate = {clip = 1.0}",
        "a" + ".a" * 40 + " = 1",
        'engine = "none"',
        "gate = {factor = 0}",
        "rounds = 1.5",
        "training = {lr = true}",
        'participation = {sampler = "plan", plan = "C1, C2; C3", joins = "C3=0", leaves = "C2=9"}',
        'participation = {joins = "C1=\u00b2"}',
        "participation = {effort = 2.0}",
        'participation = {sampler = "by_size", fraction = 0.5, stragglers = 1.0}',
        'participation = {sampler = "plan"}',
        'participation = {leaves = "C1=0,C2=0,C3=0"}',
        'participation = {sampler = "uniform", joins = "Z=1"}',
        'corruption = {flip = "C1=0.3, C3=1", blur = "C2=1.5", crop = "C1=0.1"}',
        'corruption = {gamma = "C1=0"}',
        'corruption = {noise = "C1=\u00b2"}',
        'corruption = {contrast = "Z=1"}',
        'method = {name = "fedavg", mu = 1}',
        'scenario = {name = "iid", clients = "x"}',
        "data = {name = 3}",
    )
]
STUDIES = [
    b"case = 3",
    b"seed = [0, 0]",
    b'preset = "paper"\nmethod = "fedavg"',
    b"preset = [1]",
    (
        b'preset = "laptop"\nseed = [0, 1]\nmethod = ["feddraw", {name = "fedprox", mu = [0.1,'
        b" 1]}]\n[[case]]\nrounds = 2"
    ),
    (
        b'method = ["a:b", "fedavg"]\n[data]\nname = "phantom"\ntrain = [100,'
        b' 200]\n[[case]]\nscenario = "iid"\n[[case]]\n'
    ),
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
    """Also who takes part and whose data are altered, which is text within the settings."""
    experiment = complete_settings(Experiment.read(written(data, room / "experiment.toml")))
    who, rounds = experiment.participation, min(experiment.rounds, 20)
    who.check(("C1", "C2", "C3"), rounds)
    experiment.corruption.alterations(("C1", "C2", "C3"))
    return [who.efforts(0, round, ("C1", "C2", "C3"), (3, 2, 1)) for round in range(rounds)]


def read_study(data: bytes, room: Path) -> object:
    return plan.read_study(written(data, room / "study.toml"))


# ------------------------------------------------------------------------------------------- tables

SHEETS = [
    b"path,Edema,Cardiomegaly,split,site,patient\na.png,1,0,train,X,p1\nb.png,0,,val,Y,p2\nc/d.png,-1,1,test,X,p3\n",
    b"image;label;hospital\n1.jpg;1;A\n2.jpg;0;B\n3.jpg;1;C\n4.jpg;0;A\n5.jpg;1;B\n",
    (
        b"Path,Sex,Age,Frontal/Lateral,AP/PA,Atelectasis,Cardiomegaly,Consolidation,Edema,Pleural"
        b" Effusion\n"
        b"CheXpert-v1.0-small/train/patient00001/study1/view1_frontal.jpg,F,68,Frontal,AP,1.0,0.0,,-1.0,\n"
        b"CheXpert-v1.0-small/train/patient00002/study1/view2_lateral.jpg,F,68,Lateral,,1.0,0.0,,-1.0,\n"
    ),
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
    return data_sets.read_training_labels(
        written(data, room / ("table.csv.gz" if packed else "table.csv"))
    )


SHEETS += [
    b"path,Edema,Edema\na.png,1,1\n",
    b"x,y\n1,2\n",
    b"path\n",
    b"path,a\nb.png,maybe\nc.png,1\nd.png,0\n",
    b"path,a,split\nb.png,1,nowhere\n",
    b"path,a,set\na.png,1,train\nb.png,0,test\nc.png,1,train\nd.png,0,train\ne.png,1,train\n",
    b"path,a\n\n\nb.png,1\nb.png,0\n",
    (
        b"Study,Frontal/Lateral,Atelectasis,Cardiomegaly,Consolidation,Edema,Pleural Effusion\n"
        b"test/patient1/study1,,1,0,,,\n"
    ),
]
NIH = [
    b"Image Index,Finding Labels,Follow-up"
    b" #\n00000001_000.png,Cardiomegaly|Effusion,0\n00000002_000.png,No Finding,1\n"
]


def read_nih(data: bytes, room: Path) -> object:
    parts = {"00000001_000.png": 0, "00000002_000.png": 2, "../../secret.png": 0}
    table = nih.read_nih_table(
        written(data, room / "Data_Entry_2017.csv"), parts, "paper", {"00000001_000.png": "a/b.png"}
    )
    if any(path.startswith(("/", "..")) for path in table.paths):
        raise AssertionError(f"a path leaves the folder: {table.paths}")
    return table


DONE = [
    b"run,key,method,auc\na,0011,fedavg,0.5\nb,0022,feddraw,\n",
    b"key\n0011\n",
    b"run,auc\na,0.5\n",
    b'key,key,"a\nb"\n1,2,3\n',
]


def read_done(data: bytes, room: Path) -> object:
    """A study's table, and what it is after a run has been added."""
    path = written(data, room / "runs.csv")
    results_table.ResultTable(path).add([{"key": "new", "run": "c", "auc": 0.5, "gm": math.nan}])
    again = results_table.ResultTable(path)
    assert "new" in again.rows
    return again.rows


SURVEYS = [
    b"path,Edema,site\na.png,1,North\nb.png,0,South\na.png,0,North\n",
    b"image,label,patient\na.png,Edema|Mass,1\nb.png,No Finding,2\n",
    b"image,class\na.png,Edema\nmissing.png,Mass\n",
    b"x,y\n1,2\n",
    b"label,x\nEdema,1\nMass,2\n",
    b"path,Edema,site\n"
    + b"".join(
        b"%s.png,%d,%s\n" % (name, name == b"a", site)
        for name in (b"a", b"b")
        for site in (b"N", b"S")
    ),
    b"path,Edema,site\n"
    + b"".join(b"%d.png,%d,%s\n" % (i, i % 3 == 0, (b"N", b"S")[i % 2]) for i in range(60))
    + b"a.png,1,N\n",
    b"Image Index,Finding Labels\na.png,Edema\n",
    b"path,label\na.png,\nb.png,none\n",
    b"path,Edema\nnowhere.png,1\n",
    b"label\nEdema\n",
]


def read_survey(data: bytes, room: Path) -> object:
    """What `feddraw init` makes of a table: an experiment file that can be read."""
    place = room / "survey"
    place.mkdir(exist_ok=True)
    for name in ("a.png", "b.png"):
        if not (place / name).exists():
            written(picture("PNG"), place / name)
    found = inspection.inspect_data(written(data, place / "table.csv"), place / "out.toml")
    _ = found.findings_without_auc(), found.unusable_rows
    text = init_own_data.experiment_file_text(
        found, init_own_data.plan_first_run(found, 2), "feddraw init table.csv", "out.toml"
    )
    return Experiment.read(written(text.encode(errors="surrogateescape"), room / "surveyed.toml"))


STATISTICS = [
    b"scenario,method\nA,feddraw\n",
    b"scenario,method,auc,gm\nA,feddraw,.8,.7\nA,fedavg,.7,.6\nB,feddraw,.9,.8\nB,fedavg,.8,.9\n",
    b"scenario,method,seed,auc\nA,x,0,.1\nA,x,1,.2\nA,y,0,.3\nA,y,1,.3\n",
]


def read_statistics(data: bytes, room: Path) -> object:
    sheet = csv_sheet.CsvSheet.of(written(data, room / "results.csv"))
    repeat = "seed" if "seed" in sheet.header else ""
    tidy = tidy_results.TidyTable(sheet, "scenario", "method", repeat)
    return [tidy.table(column) for column in tidy.value_columns()]


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
        "sha256": index_list.sha256_of_names(names),
        "clients": clients,
    }
    text = json.dumps(document).encode()
    return [text, text + b"\n", b'{"clients": [], "scenario": "x", "scale": 1, "sha256": ""}']


def read_index(data: bytes, room: Path) -> object:
    labels = Labels(np.zeros((3, 1), np.uint8), ("Edema",), np.array(["a.png", "b.png", "c.png"]))
    return index_list.read_index_list(
        written(data, room / "list.json"), labels, 1.0 if data[-1:] == b"}" else 2.0
    )


def reshape_index(data: bytes, rng: random.Random) -> bytes:
    """Other clients and images under a right hash."""
    names = {
        f"C{i}": [rng.choice(("a.png", "b.png", "d.png")) for _ in range(rng.randrange(3))]
        for i in range(3)
    }
    clients = [{"client": client, "images": images} for client, images in names.items()]
    document = {
        "scenario": "s",
        "scale": rng.choice((1.0, 2.0)),
        "sha256": index_list.sha256_of_names(names),
        "clients": clients,
    }
    return (
        mutate(json.dumps(document).encode(), [data], [b"[]", b"{}", b"null"], rng)
        if rng.random() < 0.5
        else json.dumps(document).encode()
    )


# -------------------------------------------------------------------------------------- run folders

FILES = (
    "pieces.csv",
    "experiment.toml",
    "weights.csv",
    "rounds.jsonl",
    "metrics.json",
    "environment.json",
    "predictions.safetensors",
)


@functools.cache
def finished(room: Path) -> Path:
    target = make_run(room / "finished", images=4, rounds=2, alone=(0.7, 0.7, 0.7, 0.6))
    lines = [
        f"{round},C{client},{piece},0.9,0.3,0.25,,"
        for round in (0, 1)
        for client in (1, 2)
        for piece in FINDINGS
    ]
    (target / "pieces.csv").write_text(
        "\n".join([",".join(ledger_table.PIECE_COLUMNS), *lines, ""]), encoding="utf-8"
    )
    return target


def run_seeds(room: Path) -> list[bytes]:
    """The first byte says which file it is."""
    place = finished(room)
    return [
        bytes([number]) + (place / name).read_bytes()
        for number, name in enumerate(FILES)
        if (place / name).is_file()
    ] + odd_ledgers()


def odd_ledgers() -> list[bytes]:
    """Ledgers of other methods and of rounds that did not go well."""

    def ledger(*lines: str) -> bytes:
        whole = [line + "," * 9 for line in lines]  # without policy, without measurement
        return b"\2" + "\n".join([",".join(ledger_table.LEDGER_COLUMNS), *whole, ""]).encode()

    alone = "0,C1,10,2,,,,,,1,1,weighted"
    return [
        ledger(),
        ledger(alone),
        ledger(alone, "1,C1,10,2,,,,,,1,1,missing"),
        ledger(
            alone,
            "0,C2,5,1,,,,,,-3,2,weighted: clipped",
            "1,C1,10,2,,,,,,0,,refused: NaN",
            "1,C2,0,0,,,,,,0,,missing",
        ),
        ledger(
            "0,C1,10,2,0.5,0.9,,,0.1,0.5,0.5,weighted", "0,C2,10,2,0.5,0.9,,,0.1,0.5,0.5,weighted"
        ),
        ledger("0,C1,10,2,0.9,0.9,1,,,0.9,0.9,weighted", "0,C2,1,2,0.1,0.9,1,,,0.1,0.1,weighted"),
        ledger("0,C1,10,2,0.9,0.9,1,,,inf,nan,weighted", "0,C2,1,2,0.1,0.9,1,,,0,0,not sampled"),
    ]


HERE = environment()


def read_folder(data: bytes, room: Path) -> object:
    place = finished(room)
    name = FILES[data[0] % len(FILES)] if data else FILES[0]
    before = (place / name).read_bytes() if (place / name).is_file() else None
    (place / name).write_bytes(data[1:])
    try:
        run = recorded_run.read_run(place)
        run_collection.collect_runs([place])
        found = explain_weights.explain_run_weights(run)
        _ = (
            list(weights_in_words.weights_in_sentences(found)),
            weights_document.explanation_document(found),
        )
        _ = list(verify.compare_records(run, run, 2))
        _ = list(verify.compare_files(RunFolder(place), RunFolder(place)))
        _ = list(verify.differing_environment(run.environment, HERE))
        if (kept := run.predictions()) is not None:
            _ = kept.by_model
        with suppress(UserError):  # other settings
            RunFolder(place).begin({}, resume=True)
        return run
    finally:
        (place / name).write_bytes(before) if before is not None else (place / name).unlink()


REPORTED = {
    "feddraw": "CHM-2",
    "fedavg": "CHM-2",
    "alone": "CHM-2",
    "other feddraw": "CHM-3",
    "other fedavg": "CHM-3",
}


@functools.cache
def reported(room: Path) -> Path:
    """Two methods in two scenarios and a reference, whose report has most of its parts."""
    for name, scenario in REPORTED.items():
        method = name.split()[-1]
        own = (0.7, 0.7, 0.7, 0.6) if method == "alone" else ()
        make_run(
            room / "reported" / name,
            method=method,
            scenario=scenario,
            alone=own,
            images=12,
            rounds=2,
        )
    (room / "reported" / "feddraw" / "pieces.csv").write_bytes(
        (finished(room) / "pieces.csv").read_bytes()
    )
    return room / "reported"


def read_report(data: bytes, room: Path) -> object:
    """Everything of a report but the drawing of figures: one file of one of its runs is
    replaced.
    """
    place = reported(room) / list(REPORTED)[len(data) % len(REPORTED)]
    name = FILES[data[0] % len(FILES)] if data else FILES[0]
    before = (place / name).read_bytes() if (place / name).is_file() else None
    (place / name).write_bytes(data[1:])
    try:
        found = run_collection.collect_runs([place.parent])
        made = statistics.compute_report(found, settings=ReportSettings(replicates=5), command="")
        document = section_order.compose_report(made, "A report")
        page = html.render_html(
            document,
            {picture.name: "<svg></svg>" for picture in all_pictures(document.blocks)},
        )
        assert "<script>alert" not in page
        return (
            page,
            markdown.render_markdown(document, ""),
            latex.render_latex(document),
            files.tidy_results(found),
        )
    finally:
        (place / name).write_bytes(before) if before is not None else (place / name).unlink()


def odd_report(replicates: int, room: Path) -> object:
    """One run twice, patients unknown, another version's settings and no scores at all."""
    for name in ("one", "again"):
        if not (room / "scored" / name).exists():
            make_run(
                room / "scored" / name,
                images=12,
                patients=False,
                settings={"kept": name} if name == "one" else {},
            )
            versions = {"packages": {"feddraw": name}}
            (room / "scored" / name / "environment.json").write_text(
                json.dumps(versions), encoding="utf-8"
            )
    odd_folders(room)
    return [
        statistics.compute_report(
            run_collection.collect_runs([room / place]),
            settings=ReportSettings(replicates=replicates),
            command="",
        )
        for place in ("scored", "odd/one")
    ]


def report_seeds(room: Path) -> list[bytes]:
    """Also with a name that is markup."""
    found = run_seeds(room)
    return found + [data.replace(b"C1", b"<script>alert(1)</script>") for data in found[:4]]


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
        (
            arrays[name][:-1],
            arrays[name].astype(np.float64),
            arrays[name].astype(np.int8),
            arrays[name][None],
        )
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
        (
            None,
            -1,
            "x",
            [],
            {},
            1e999,
            {"a": {"array": "nowhere"}},
            {"x": 1},
            {"0": [1]},
            2**70,
            True,
        )
    )
    document["blake2"] = checkpoint.arrays_digest(arrays, document)
    return bytes(save(arrays, {"feddraw": json.dumps(document)}))


# --------------------------------------------------------------------------------- arrays, pictures


def archive(**changes: Any) -> bytes:
    arrays = {
        f"{split}_labels": np.array([[0, 1], [1, 0]], np.uint8)
        for split in ("train", "val", "test")
    }
    arrays |= {
        f"{split}_images": np.zeros((2, 8, 8), np.uint8) for split in ("train", "val", "test")
    }
    file = io.BytesIO()
    np.savez_compressed(
        file, **{name: array for name, array in (arrays | changes).items() if array is not None}
    )
    return file.getvalue()


def npz_seeds() -> list[bytes]:
    names = {
        f"{split}_names": np.array([f"{split}{row}" for row in range(2)])
        for split in ("train", "val", "test")
    }
    fourteen = {
        f"{split}_labels": np.zeros((2, 14), np.int64) for split in ("train", "val", "test")
    }
    return [
        archive(),
        archive(classes=np.array(["Edema", "Mass"]), **names),
        archive(**fourteen),
        archive(
            **names | {f"{s}_patients": np.array(["1", "2"]) for s in ("train", "val", "test")}
        ),
    ]


def more_archives() -> list[bytes]:
    nih_names = {
        f"{s}_names": np.array([f"0000000{i}_{k}.png" for k in range(2)])
        for i, s in enumerate(npz_archive.SPLIT_PREFIXES)
    }
    wide = {f"{split}_labels": np.zeros((2, 3)) for split in npz_archive.SPLIT_PREFIXES}
    twice = {f"{split}_names": np.array(["a", "a"]) for split in npz_archive.SPLIT_PREFIXES}
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
        archive(**{f"{split}_sites": np.array(["x"]) for split in npz_archive.SPLIT_PREFIXES}),
    ]


def bomb(room: Path) -> object:
    return read_npz(archive(train_images=np.zeros((2, 8192, 8192), np.uint8)), room)


def read_npz(data: bytes, room: Path) -> object:
    opened = npz_archive.NpzArchive.open(written(data, room / "archive.npz"))
    return opened.table("paper"), opened.images()


def reshape_npz(data: bytes, rng: random.Random) -> bytes:
    """One member changed inside an archive whose own checksums are right."""
    file = io.BytesIO()
    try:
        with (
            zipfile.ZipFile(io.BytesIO(data)) as old,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new,
        ):
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
    shape = rng.choice(
        ((), (0,), (2,), (2, 2), (2, 14), (3, 2), (2, 8, 8), (2, 8, 7), (2, 8, 8, 1), (2, 8, 8, 3))
    )
    dtype = rng.choice(("u1", "i8", "f4", "f8", "U3", "?", "c8", "M8[s]", "S2", [("a", "u1")]))
    file = io.BytesIO()
    values = np.zeros(shape, dtype) if rng.random() < 0.8 else np.ones(shape, "f4") * np.nan
    np.save(file, values, allow_pickle=False)
    return file.getvalue()


def picture(kind: str, mode: str = "L") -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).convert(mode).save(file, kind)
    return file.getvalue()


def dicom(side: int = 8) -> list[bytes]:
    if find_spec("pydicom") is None:
        return []
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = (
        ExplicitVRLittleEndian,
        "1.2.840.10008.5.1.4.1.1.1",
    )
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=["fuzz"])
    file = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    file.Rows = file.Columns = side
    file.BitsAllocated, file.BitsStored, file.HighBit, file.SamplesPerPixel = 16, 12, 11, 1
    file.PixelRepresentation, file.PhotometricInterpretation = 0, "MONOCHROME1"
    file.RescaleSlope, file.RescaleIntercept, file.WindowCenter, file.WindowWidth = (
        "1",
        "0",
        "100",
        "50",
    )
    file.PixelData = np.arange(64, dtype=np.uint16).tobytes()
    out = io.BytesIO()
    file.save_as(out, enforce_file_format=True)
    return [out.getvalue()]


def read_picture(data: bytes, room: Path) -> object:
    return imaging.Recipe(8).apply(imaging.decode(written(data, room / "picture")))


def more_pictures() -> list[bytes]:
    """Too many pixels, other colours, deflated, and what ends at once."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + header
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )
    found = [bomb, b"", b"not a picture", b"\0" * 128 + b"DICM", *dicom(60_000)]
    for file in dicom():
        deflated = file.replace(
            b"UI\x14\x001.2.840.10008.1.2.1\0", b"UI\x16\x001.2.840.10008.1.2.1.99"
        )
        found += [
            deflated,
            file.replace(b"MONOCHROME1", b"MONOCHROME2"),
            file.replace(b"MONOCHROME1 ", b"RGB         "),
        ]
    return found


def weight_seeds() -> list[bytes]:
    found = []
    other = {"features.0.weight": torch.zeros(2)}
    for state in (
        network().state_dict(),
        other,
        {"features.0.weight": 1, "x": [1, 2]},
        [1, 2],
        {1: torch.zeros(2)},
    ):
        file = io.BytesIO()
        torch.save(state, file)
        found.append(file.getvalue())
    return [*found, save({"a": np.zeros(2, np.float32)})]


def network() -> nn.Module:
    module = nn.Module()
    module.features = nn.Sequential(nn.Linear(3, 2))
    return module


def read_weights(data: bytes, room: Path) -> object:
    state = read_saved_parameters(written(data, room / "weights.pth"))
    densenet121.load_torchvision_densenet121(network(), state)
    return None


# ------------------------------------------------------------------------------------ our own files


def entry_seeds() -> list[bytes]:
    """The first byte says which file of a prepared entry it is: the array, bad rows, or the log."""
    file = io.BytesIO()
    np.save(file, np.zeros((3, 4, 4), np.uint8))
    log = b'{"start": 0, "bad": {"1": "gone"}}\n{"start": 16, "bad": {}}\n{"sta'
    return [b"0" + file.getvalue(), b'1{"2": "not an image"}', b"2" + log, b"2"]


def read_entry(data: bytes, room: Path) -> object:
    """What is spoilt is made again, so nothing is refused in words."""
    place = room / "entry"
    place.mkdir(exist_ok=True)
    for number, seed in enumerate(entry_seeds()[:3]):
        name = ("images.npy", "bad.json", "progress.jsonl")[number]
        written(data[1:] if data[:1] == seed[:1] else seed[1:], place / name)
    found = (
        image_cache.open_finished_entry(place, (3, 4, 4)),
        image_cache.read_cache_log(place / "progress.jsonl"),
    )
    if found[0] is None:
        raise UserError("it is made again")
    return found


# ---------------------------------------------------------------------------------------- odd calls

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


def huge_dicom(room: Path) -> object:
    """One that says what it is, and is larger than any."""
    path = written(bytes(128) + b"DICM", room / "huge.dcm")
    os.truncate(path, imaging.MAX_FILE + 1)
    try:
        return imaging.decode(path)
    finally:
        path.unlink()


def flat_picture(_: Path) -> object:
    return imaging.Recipe(8, clahe=True).apply(np.zeros((8, 8), np.uint8))


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
            run_collection.collect_runs([wrong])
    return run_collection.collect_runs([room / "odd"])


def crowded(room: Path) -> object:
    """A ledger in which every line names another client and another round."""
    place = room / "crowded"
    if not place.exists():
        make_run(place)
    lines = [f"{number},C{number},1,1,,,,,,1,1,weighted,,,,,,,,," for number in range(4000)]
    (place / "weights.csv").write_text(
        "\n".join([",".join(ledger_table.LEDGER_COLUMNS), *lines, ""]), encoding="utf-8"
    )
    return recorded_run.read_run(place)


def odd_log(room: Path) -> object:
    """A run with weights by piece of the model, and without a checkpoint."""
    place = RunFolder(room / "pieces")
    place.path.mkdir(exist_ok=True)
    place.pieces.write_text(",".join(ledger_table.PIECE_COLUMNS) + "\n", encoding="utf-8")
    place.forget_from(0)
    return place.load_checkpoint(tiny.initial().layout)


def look(name: str, room: Path) -> object:
    """What is no table: nothing, an archive, a folder of folders, an empty one."""
    (room / "classes" / "train" / "Edema").mkdir(parents=True, exist_ok=True)
    (room / "empty").mkdir(exist_ok=True)
    written(b"", room / "x.npz")
    written(picture("PNG"), room / "classes" / "train" / "Edema" / "a.png")
    found = inspection.inspect_data(room / name, room / "out.toml")
    return init_own_data.experiment_file_text(found, init_own_data.plan_first_run(found), "x", "y")


def named_columns(room: Path) -> object:
    """Columns, findings and shares as somebody set them, and paths that are absolute."""
    lines = [
        "path,Edema,Mass,x",
        f"{room.resolve()}/a.png,1,0,p",
        "b.png,0,1,q",
        "c.png,1,1,r",
        "d.png,,,q",
    ]
    path = written("\n".join([*lines, ""]).encode(), room / "named.csv")

    def read(**settings: Any) -> object:
        return own_tables.read_own_tables([path], own_tables.TableSettings(**settings), root=room)

    for wrong in (
        {"findings": "paper"},
        {"findings": 3},
        {"columns": {"site": "y"}},
        {"shares": (1, 1, 1)},
    ):
        with suppress(UserError):
            read(**wrong)
    return read(findings=["Mass"], columns={"site": "x"})


def added_twice(room: Path) -> object:
    table = results_table.ResultTable(room / "new.csv")
    table.add([{"key": "a"}])
    return table.add([{"key": "a"}])


def odd_similarities(room: Path) -> object:
    return [weights.parse_similarity(text) for text in ("", "1,.5", str(room / "no.csv"))]


# ---------------------------------------------------------------------------------------------- all

PLAN = (
    "read_study _require_few_runs _combinations _choice_label planned_run _require_different_names"
)
SHEET = (
    "read_own_tables open_tables _findings_of_all _refuse_two_spellings _take_rows split_own_rows"
    " path_inside_folder"
)
RUNS = "collect_runs find_run_folders"
LABELS = (
    "_labelled_runs _differing_keys _is_crossed _notes _without_copies _name_with_settings _setting"
)


def targets(room: Path) -> list[Target]:
    """Every reader; the files of some are made in this folder."""
    toml = named(file_reading, "read_text read_toml")
    lines = [
        *named(ledger_table, "read_ledger ledger_entry _from_cell"),
        *named(file_reading, "read_csv read_jsonl read_text parse_json"),
    ]
    settings = [
        *functions(catalog, without="own_function names find call_with_settings"),
        *named(Experiment, "of read __post_init__ section"),
        *functions(participation),
        parse_pairs,
        *named(corruption, "_number"),
        *named(corruption.Corruption, "alterations check _by_site"),
    ]
    sheet = functions(csv_sheet, finding_names, label_table, without="split_rows _first")
    release = named(chexpert, "read_chexpert chexpert_findings frontal_images")
    logs = [
        bytes([place == "weights.csv"]) + (finished(room) / place).read_bytes()
        for place in FILES[1:3]
    ]
    images = [
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
            "experiment.toml",
            read_experiment,
            ONE_LINE,
            EXPERIMENTS,
            [*toml, *settings, complete_settings],
            SETTINGS,
            odd=[
                *no_file(Experiment.read),
                huge("x.toml", Experiment.read),
                trusted(Experiment.read, EXPERIMENTS[3]),
            ],
        ),
        Target(
            "study.toml",
            read_study,
            ONE_LINE,
            STUDIES,
            [*toml, *named(plan, PLAN)],
            SETTINGS,
            odd=[
                *no_file(plan.read_study),
                huge("x.toml", plan.read_study),
                trusted(plan.read_study, STUDIES[5]),
            ],
        ),
        Target(
            "label tables",
            read_sheet,
            ONE_LINE,
            [*SHEETS, gzip.compress(SHEETS[0])],
            [
                *sheet,
                *named(own_tables, SHEET),
                *functions(table_columns),
                *functions(label_cells),
                *release,
            ],
            TABLE_WORDS,
            odd=[
                *no_file(data_sets.read_training_labels),
                huge("x.csv", data_sets.read_training_labels),
                named_columns,
            ],
        ),
        Target("ChestX-ray14's table", read_nih, ONE_LINE, NIH, [nih.read_nih_table], TABLE_WORDS),
        Target(
            "tables of results",
            read_statistics,
            ONE_LINE,
            STATISTICS,
            [
                *named(tidy_results.TidyTable, "table paired_rows value_columns"),
                *named(tidy_results, "_number"),
                *named(csv_sheet.CsvSheet, "rows column of"),
            ],
            TABLE_WORDS,
        ),
        Target(
            "tables of studies",
            read_done,
            ONE_LINE,
            DONE,
            [*named(results_table.ResultTable, "__init__ add"), results_table._result_cell, *lines],
            TABLE_WORDS,
            odd=[
                huge("runs.csv", results_table.ResultTable),
                added_twice,
                lambda room: file_reading.read_text(room, 1),
            ],
        ),
        Target(
            "tables for init",
            read_survey,
            ONE_LINE,
            SURVEYS,
            functions(
                inspection,
                class_tables,
                own_images,
                init_own_data,
                without="_rows_of_class_folders positives negatives sites sizes",
            ),
            TABLE_WORDS,
            odd=[*(partial(look, name) for name in ("nowhere", "x.npz", "classes", "empty"))],
        ),
        Target(
            "similarities",
            read_similarities,
            ONE_LINE,
            SIMILARITIES,
            named(weights, "parse_similarity _holds_numbers"),
            TABLE_WORDS,
            odd=[odd_similarities, huge("s.csv", lambda path: weights.parse_similarity(str(path)))],
        ),
        Target(
            "index lists",
            read_index,
            ONE_LINE,
            index_seeds(),
            [index_list.read_index_list, index_list.IndexList.read],
            [b"[]", b"null"],
            reshape_index,
            [huge("x.json", index_list.IndexList.read), *no_file(index_list.IndexList.read)],
        ),
        Target(
            "run folders",
            read_folder,
            ONE_LINE,
            run_seeds(room),
            [
                *named(run_collection, RUNS),
                recorded_run.read_run,
                *functions(ledger_table.LedgerTable),
                *named(recorded_run.RecordedRun, "predictions curve by_class"),
                *named(run_reader.RunReader, "look _read_settings _read_metrics _new_lines"),
                *named(run_reader.RunReader, "_new_entries"),
                predictions.read_predictions,
                *named(file_reading, "read_json number_or_nan"),
                run_reader.damage_told,
                *named(verify, "compare_records compare_files differing_environment"),
                *functions(explain_weights),
                *functions(weights_in_words),
                *functions(weights_document),
            ],
            [b",", b"\n", b"{", b"[", b"null", b'"macro"'],
            odd=[odd_folders, crowded],
        ),
        Target(
            "reports",
            read_report,
            ONE_LINE,
            report_seeds(room),
            [
                *functions(
                    statistics,
                    patients,
                    trainings,
                    client_gains,
                ),
                *named(run_collection, LABELS),
            ],
            [b",", b"\n", b"null", b"<script>alert(1)</script>", b"$\\input{x}$", b"|"],
            odd=[partial(odd_report, 0), partial(odd_report, 5)],
        ),
        Target(
            "logs on resume",
            read_log,
            ONE_LINE,
            logs,
            [RunFolder.forget_from, *lines],
            [b",", b'{"round": 0}\n'],
            odd=[
                odd_log,
                huge("weights.csv", file_reading.read_csv),
                lambda room: file_reading.read_text(room, 1),
            ],
        ),
        Target(
            "checkpoints",
            read_checkpoint,
            ONE_LINE,
            checkpoint_seeds(room),
            [
                RunFolder.load_checkpoint,
                *named(checkpoint, "read_checkpoint restore_arrays arrays_digest"),
            ],
            (),
            reshape_checkpoint,
            [odd_log],
        ),
        Target(
            "archives (.npz)",
            read_npz,
            ONE_LINE,
            archives,
            [
                *named(npz_archive.NpzArchive, "open read column table columns problems images"),
                npz_archive.member_from_header,
            ],
            (),
            reshape_npz,
            [*no_file(npz_archive.NpzArchive.open), bomb],
        ),
        Target(
            "pictures",
            read_picture,
            (imaging.BadImage,),
            images,
            functions(imaging, without="clahe"),
            odd=[lambda room: imaging.decode(room / "nowhere"), huge_dicom, flat_picture],
        ),
        Target(
            "weights files",
            read_weights,
            ONE_LINE,
            weight_seeds(),
            [read_saved_parameters, densenet121.load_torchvision_densenet121],
            odd=no_file(read_saved_parameters),
        ),
        Target(
            "prepared images",
            read_entry,
            ONE_LINE,
            entry_seeds(),
            named(image_cache, "open_finished_entry read_cache_log"),
            odd=[lambda room: image_cache.read_cache_log(room / "nowhere")],
        ),
        *messages(),
    ]


def messages() -> list[Target]:
    """Those of a federation, where Flower is installed."""
    if find_spec("flwr") is None:
        return []
    from federated import targets as of_flower

    return of_flower()
