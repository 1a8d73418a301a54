"""A study: a file whose lists are multiplied out, every combination a run in a folder of its own.

Seeds vary slowest, so a study that is stopped half-way has whole replicates. Runs are carried out by worker processes,
each with the serial engine on one thread: no core has more than one to do.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Literal

import torch

from feddraw.data.dataset import Dataset
from feddraw.errors import OutOfMemory, RunFailed, UserError
from feddraw.experiment.device_placement import on_device
from feddraw.experiment.run_preparation import Progress, open_data
from feddraw.experiment.running import iterate
from feddraw.experiment.settings import Experiment, complete, data_name, unnamed_defaults
from feddraw.experiment.study_families import by_family, changed, placed, read_only, read_paths, require_members
from feddraw.naming import csv_text
from feddraw.results.folder import RunFolder
from feddraw.results.outcome_settings import without_execution
from feddraw.results.reading import as_written, flat, read_csv, read_json, read_jsonl, read_toml
from feddraw.system.files import append, make_folder, refuse_link, reporting, write_whole
from feddraw.system.locks import lock_file
from feddraw.system.workers import belong_to_parent, cause_of_death, start_worker, stop_workers
from feddraw.training.devices import Place, allot, forget_cached

PLAN = "plan.json"
ALWAYS_NAMED = ("scenario", "method")
PATIENCE = 3  # runs in a row that may fail for one cause before a study stops beginning others
MOST_RUNS = 5_000  # of one file: a few short lists multiply to more than any memory holds


@dataclass(frozen=True, eq=False)
class Planned:
    """One run of a study."""

    name: str  # of its folder
    experiment: Experiment
    label: Mapping[str, str]  # what tells it from the others, by setting

    @cached_property
    def complete(self) -> Experiment:
        """The experiment with every default written out."""
        return complete(self.experiment)

    def is_finished(self, out: Path) -> bool:
        """Whether its folder in `out` has all files; one that holds another run is refused."""
        return not RunFolder(out / self.name).begin(self.complete.table(), resume=True, defaults=unnamed_defaults())

    @property
    def key(self) -> str:
        """A digest of what was asked for: every setting that is not the default, so that a new one changes no old key.

        Where the data lie on this machine and how the run is carried out are no part of it.
        """
        usual = flat(Experiment().table())
        chosen = {name: value for name, value in flat(self.experiment.table()).items() if usual.get(name) != value}
        table = without_execution(chosen | ({"data.name": data_name(self.experiment)} if "data.name" in chosen else {}))
        for name in ("data.name", "data.path"):
            if isinstance(table.get(name), str):
                table[name] = Path(table[name]).name
        return hashlib.blake2b(json.dumps(table, sort_keys=True).encode(), digest_size=8).hexdigest()


# ---------------------------------------------------------------------------------------------------- the plan


def read_study(
    path: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    trust: bool = False,
    paths: Mapping[str, str] | None = None,
) -> list[Planned]:
    """All runs of a study's file: an experiment file in which any value may be a list.

    `[[case]]` tables are alternatives: each is combined with what stands outside of them, and its `label`, if it has
    one, is what tables call it in place of its scenario. `preset` names what the settings start from. A list inside a
    list is a value. `[only.FAMILY]` has settings of the runs with this scenario or data set, `[paths]` says where
    archives are; `changes` and `paths` are the same from the command line.
    """
    table = read_toml(path)
    places, only = read_paths(table.pop("paths", {}), path), read_only(table.pop("only", {}), path)
    for_all, families = by_family(changes or {})
    preset = table.pop("preset", "laptop")
    cases = table.pop("case", [{}])
    if not (isinstance(cases, list) and all(isinstance(case, dict) for case in cases)):
        raise UserError(f"{path}: write a case as a table with two brackets: [[case]]")
    chosen: list[tuple[dict[str, Any], dict[str, str]]] = []
    for case, called in map(_called, cases):
        chosen += [(settings, label | called) for settings, label in _combinations(table | case)]
        _require_few(len(chosen))
    base = Experiment.preset(preset)
    found = []
    for settings, label in chosen:
        written = changed(base.with_settings(_dotted(settings)), only).trusted(trust, f"{path} names")
        meant = changed(written.with_settings(for_all), families)
        found.append(planned_run(placed(meant, paths or {}, places), label))
    found.sort(key=lambda planned: planned.experiment.seed)
    require_members([*only, *families], [planned.experiment for planned in found], path)
    _require_different_names(found, path)
    return found


def _called(case: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A case's settings, and the name that it gives itself."""
    settings = dict(case)
    name = settings.pop("label", None)
    return settings, {} if name is None else {"scenario": str(name)}


def _combinations(table: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Every choice of one element from each list, with words for what was chosen."""
    found: list[tuple[dict[str, Any], dict[str, str]]] = [({}, {})]
    for name, value in table.items():
        items = value if isinstance(value, list) else [value]
        choices = [choice for item in items for choice in _choices(item)]
        _require_few(len(found) * len(choices))
        found = [
            (settings | {name: chosen}, label | _label(name, chosen, inner, len(items) > 1))
            for settings, label in found
            for chosen, inner in choices
        ]
    return found


def _require_few(runs: int) -> None:
    if runs > MOST_RUNS:
        raise UserError(f"the study has {runs:,} runs or more, of {MOST_RUNS:,} allowed: split it into several files")


def _choices(item: Any) -> list[tuple[Any, dict[str, str]]]:
    return [*_combinations(item)] if isinstance(item, Mapping) else [(item, {})]


def _label(name: str, chosen: Any, inner: Mapping[str, str], several: bool) -> dict[str, str]:
    """What to call a choice: a section by its name and its own settings, a number by its setting's name."""
    if not isinstance(chosen, Mapping):
        return {name: str(chosen)} if several or name in ALWAYS_NAMED else {}
    if name not in ALWAYS_NAMED and not several:
        return {f"{name}.{key}": value for key, value in inner.items()}
    whole = flat(chosen)
    shown = whole if several else {key: whole[key] for key in inner}
    own = [f"{key}={value}" for key, value in shown.items() if key != "name"]
    return {name: ",".join([str(chosen.get("name", "")), *own])}


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted paths, a section's name before what belongs to it."""
    dotted: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            dotted |= {name: value["name"]} if "name" in value else {}
            dotted |= {f"{name}.{key}": item for key, item in value.items() if key != "name"}
        else:
            dotted[name] = value
    return dotted


def planned_run(experiment: Experiment, label: dict[str, str]) -> Planned:
    """A run with the name of its folder; `label` is what tells it from others."""
    label = {name: label.get(name, experiment.section(name)[0]) for name in ALWAYS_NAMED} | label
    others = {key.rpartition(".")[2]: value for key, value in label.items() if key not in (*ALWAYS_NAMED, "seed")}
    words = [label[name] for name in ALWAYS_NAMED] + [f"{key}={value}" for key, value in others.items()]
    name = "_".join([*words, f"seed={experiment.seed}"])
    return Planned(re.sub(r"[^\w.=,+-]+", "-", name), experiment, label)


def _require_different_names(runs: Sequence[Planned], path: Path) -> None:
    seen: set[str] = set()
    firsts: dict[str, Planned] = {}
    for planned in runs:
        if planned.name in seen:
            raise UserError(f"{path} asks for {planned.name} more than once")
        seen.add(planned.name)
        first = firsts.setdefault(planned.key, planned)
        if first is not planned:
            how = "differ only in how they are carried out, not in what comes out: give one of them"
            replaced = "are the same run: --set has replaced the settings that told them apart. Change the file instead"
            why = replaced if first.experiment == planned.experiment else how
            raise UserError(f"{path}: {first.name} and {planned.name} {why}")


def shard_of(runs: Sequence[Planned], shard: str) -> list[Planned]:
    """`i/n`: every n-th run, beginning with the i-th."""
    parts = re.fullmatch(r"(\d+)/(\d+)", shard)
    if parts is None or not 1 <= int(parts[1]) <= int(parts[2]):
        raise UserError(f"--shard takes i/n with i from 1 to n, not '{shard}'")
    return list(runs[int(parts[1]) - 1 :: int(parts[2])])


# ---------------------------------------------------------------------------------------------------- the table


def row_of(planned: Planned, out: Path) -> dict[str, Any]:
    """A finished run as a line of the study's table."""
    folder = RunFolder(out / planned.name)
    row = {"run": planned.name, "key": planned.key, **planned.label, "seed": planned.experiment.seed}
    with as_written(folder.path):
        found, rounds = read_json(folder.metrics), read_jsonl(folder.rounds)
        curve = [line["test"]["macro"] for line in rounds] if all("test" in line for line in rounds) else []
        own = {name: one["test"]["auc"]["macro"] for name, one in found["clients"].items() if "test" in one}
        row |= {kind: found["test"][kind]["macro"] for kind in ("auc", "gm")}
        if found.get("diverged"):
            row["diverged"] = found["diverged"]["round"]
        row["validation_auc"] = found["validation"]["auc"]["macro"]
        for kind in ("auc", "gm"):
            row |= {f"{kind} {name}": value for name, value in found["test"][kind]["per_class"].items()}
        row["auc_by_round"] = " ".join(f"{area:.6f}" for area in curve if area is not None)
        row |= {f"auc_of_{name}": one["test"]["auc"]["macro"] for name, one in found.get("models", {}).items()}
        row |= _seen_by_round(rounds)
        row["auc_by_client"] = " ".join(f"{name}={area:.6f}" for name, area in own.items() if area is not None)
        row["partition"] = read_toml(folder.settings)["partition"]["sha256"][:16]
        row["seconds"] = round(sum(sum(line["seconds"].values()) for line in rounds), 2)
    return row


def _seen_by_round(rounds: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The test AUC of every round at each site whose images differ: 'C4 0.71 0.72; C1 …'."""
    curves = [line.get("test", {}).get("sites", {}) for line in rounds]
    if not all(curves):
        return {}
    areas = {site: [math.nan if one[site] is None else one[site] for one in curves] for site in curves[0]}
    words = [" ".join([site, *(f"{area:.6f}" for area in own)]) for site, own in areas.items()]
    return {"auc_by_site_by_round": "; ".join(words)}


class ResultTable:
    """A CSV with a line for every finished run; written whole, so that columns may come later.

    Several studies may share one: rows are added under a lock, to what the file holds at that moment.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = _by_key(path)

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if all(row["key"] in self.rows for row in rows):
            return
        with reporting(self.path):
            make_folder(self.path.parent)
        with lock_file(self.path):
            self.rows = _by_key(self.path)
            self.rows |= {row["key"]: dict(row) for row in rows if row["key"] not in self.rows}
            columns = list(dict.fromkeys(name for row in self.rows.values() for name in row))
            lines = [[_cell(row.get(name)) for name in columns] for row in self.rows.values()]
            write_whole(self.path, csv_text([columns, *lines]).encode())


def _by_key(path: Path) -> dict[str, dict[str, Any]]:
    rows = read_csv(path)
    if any("key" not in row for row in rows):
        raise UserError(f"{path} is not a table that a study wrote: it has no column 'key'")
    return {row["key"]: row for row in rows}


def _cell(value: Any) -> Any:
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if missing else round(value, 6) if isinstance(value, float) else value


# ---------------------------------------------------------------------------------------------------- the work


@dataclass(frozen=True)
class Event:
    """Something that happened in a study."""

    kind: Literal["skipped", "started", "progress", "finished", "failed", "left out"]
    run: str
    text: str = ""
    done: float = 0.0  # share of the run
    row: Mapping[str, Any] | None = None


def conduct(
    runs: Sequence[Planned],
    out: Path,
    workers: int | Sequence[Place],
    tables: Sequence[ResultTable],
    progress: Progress | None = None,
    *,
    admit: Callable[[Planned], bool] = lambda _: True,
    doubtful: Collection[str] = (),
    plan: str = PLAN,
    patience: int = PATIENCE,
) -> Iterator[Event]:
    """Carry out what is not finished yet; tells of all that happens. A run that fails does not stop the others.

    `workers` is their number, or where each trains; a run that finds no memory there waits until fewer are left. Only
    when `patience` runs in a row have failed for the same cause are the rest left out (0: never).

    `progress` is told of images that are prepared before the first run. `admit` is asked before each run begins; one
    that it refuses is left out. A file called `plan` tells whoever watches the folder what is still to come; `doubtful`
    are runs that will probably be refused.
    """
    waiting = []
    for planned in runs:
        event = _already(planned, out, tables)
        if event is None:
            waiting.append(planned)
        else:
            yield event
    unusable = prepare_data(waiting, progress)
    yield from (Event("failed", planned.name, reason) for planned, reason in unusable.items())
    waiting = [planned for planned in waiting if planned not in unusable]
    places = [Place()] * workers if isinstance(workers, int) else workers
    record = _PlanFile(out / plan, runs, min(len(places), len(waiting)), doubtful)
    pool = _WorkerPool(out, places[: len(waiting)])
    causes = SameCause(patience)
    try:
        for event in pool.run(waiting, lambda planned: not causes.hopeless and admit(planned)):
            record.note(event)
            causes.note(event)
            if event.row is not None:
                for table in tables:
                    table.add([event.row])
            yield event
    finally:
        pool.stop()


def _already(planned: Planned, out: Path, tables: Sequence[ResultTable]) -> Event | None:
    """Whether there is nothing to do for a run, or nothing that can be done."""
    try:
        refuse_link(out / planned.name)
        if planned.is_finished(out):
            row = row_of(planned, out)
            for table in tables:
                table.add([row])
            return Event("skipped", planned.name, row=row)
    except UserError as mistake:
        return Event("failed", planned.name, str(mistake))
    listed = next((table.rows[planned.key] for table in tables if planned.key in table.rows), None)
    return None if listed is None else Event("skipped", planned.name, row=listed)


def prepare_data(runs: Sequence[Planned], progress: Progress | None) -> dict[Planned, str]:
    """Prepare each data set's images once, while there are no workers yet; gives the runs whose data cannot be opened.

    Phantoms, and what a user's own function makes, are not kept on disk: workers make their own.
    """
    mistakes: dict[str, str] = {}
    unusable = {}
    for planned in runs:
        key = data_key(planned.complete)
        if key not in mistakes and is_file_data(planned):
            mistakes[key] = _mistake(planned.complete, progress)
        if mistakes.get(key):
            unusable[planned] = mistakes[key]
    return unusable


def is_file_data(planned: Planned) -> bool:
    """Whether its images lie in files, and are prepared before the first run."""
    name = planned.complete.section("data")[0]
    return name != "phantom" and ":" not in name


def _mistake(experiment: Experiment, progress: Progress | None) -> str:
    """What is wrong with an experiment's data; empty if they are ready."""
    try:
        open_data(experiment, progress)
    except (UserError, RunFailed) as mistake:
        return str(mistake)
    except Exception:
        return ""  # a worker will meet it again, and log it with its traceback
    return ""


def data_key(experiment: Experiment) -> str:
    """Equal for experiments on the same data set with the same settings of it."""
    return json.dumps(experiment.data, sort_keys=True)


class SameCause:
    """Notices when run after run fails for one cause: the next hundred would, too."""

    def __init__(self, patience: int) -> None:
        self._patience, self._cause, self._count = patience, "", 0

    def note(self, event: Event) -> None:
        if event.kind == "finished":
            self._count = 0
        elif event.kind == "failed":
            cause = re.sub(r"\d+", "#", event.text.replace(event.run, "")).partition("; its traceback is in ")[0]
            self._count = self._count + 1 if cause == self._cause else 1
            self._cause = cause

    @property
    def hopeless(self) -> bool:
        return 0 < self._patience <= self._count


class _PlanFile:
    """What a study still has to do, for whoever watches its folder."""

    def __init__(self, path: Path, runs: Sequence[Planned], workers: int, doubtful: Collection[str]) -> None:
        self._path = path
        self._plan: dict[str, Any] = {"runs": [planned.name for planned in runs], "workers": workers}
        self._plan |= {"failed": {}, "left_out": sorted(doubtful)}
        if workers:
            with reporting(path):
                make_folder(path.parent)
            self._write()

    def note(self, event: Event) -> None:
        failed, left_out = self._plan["failed"], self._plan["left_out"]
        if event.kind == "failed":
            failed[event.run] = event.text
        elif event.kind == "left out" and event.run not in left_out:
            left_out.append(event.run)
        elif event.kind == "started" and event.run in left_out:
            left_out.remove(event.run)
        else:
            return
        self._write()

    def _write(self) -> None:
        write_whole(self._path, (json.dumps(self._plan, indent=1) + "\n").encode())


class _WorkerPool:
    """Worker processes, each with at most one run; one that dies is replaced and its run counted as failed.

    One that has no memory for its run ends, and the run waits for the others on its device; the last of them may not.
    """

    def __init__(self, out: Path, places: Sequence[Place]) -> None:
        self.out = out
        self._processes: dict[Connection, SpawnProcess] = {}
        self._places: dict[Connection, Place] = {}
        self._busy: dict[Connection, Planned] = {}
        self._waiting: list[Planned] = []
        for place in places:
            self._start(place)

    def _start(self, place: Place) -> None:
        pipe, process = start_worker(serve, place)
        self._processes[pipe], self._places[pipe] = process, place

    def run(self, runs: Sequence[Planned], admit: Callable[[Planned], bool]) -> Iterator[Event]:
        self._waiting = list(reversed(runs))
        while self._waiting or self._busy:
            for pipe in [p for p in self._processes if p not in self._busy]:
                yield from self._next(pipe, admit)
            for heard in wait(list(self._busy)) if self._busy else ():
                assert isinstance(heard, Connection)
                yield from self._receive(heard, admit)

    def _next(self, pipe: Connection, admit: Callable[[Planned], bool]) -> Iterator[Event]:
        while self._waiting and pipe not in self._busy:
            planned = self._waiting.pop()
            yield self._begin(pipe, planned) if admit(planned) else Event("left out", planned.name)

    def _begin(self, pipe: Connection, planned: Planned) -> Event:
        self._busy[pipe] = planned
        request = {"experiment": planned.experiment.table(), "folder": str(self.out / planned.name)}
        pipe.send_bytes(json.dumps(request).encode())
        return Event("started", planned.name)

    def _receive(self, pipe: Connection, admit: Callable[[Planned], bool]) -> Iterator[Event]:
        planned = self._busy[pipe]
        try:
            said = json.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            yield self._replace(pipe)
            return
        if "progress" in said:
            yield Event("progress", planned.name, *said["progress"])
            return
        del self._busy[pipe]
        if "finished" in said:
            begun = list(self._next(pipe, admit))  # the worker goes on while we read what it wrote
            yield self._finished(planned)
            yield from begun
        elif "full" in said:
            yield self._let_go(pipe, planned, said["full"])
        else:
            where = self._logged(planned, said["traceback"]) if "traceback" in said else ""
            yield Event("failed", planned.name, said["failed"] + where)

    def _finished(self, planned: Planned) -> Event:
        try:
            return Event("finished", planned.name, done=1.0, row=row_of(planned, self.out))
        except UserError as mistake:
            return Event("failed", planned.name, str(mistake))

    def _logged(self, planned: Planned, trace: str) -> str:
        """Where the traceback was written, or why it could not be."""
        log = self.out / "failures.log"
        try:
            with lock_file(log):
                append(log, f"{planned.name}\n{trace}\n")
        except (UserError, RunFailed) as trouble:
            return f"; {trouble}"
        return f"; its traceback is in {log}"

    def _let_go(self, pipe: Connection, planned: Planned, shortage: str) -> Event:
        """End a worker that had no memory, if there are others on its device, and keep its run for them."""
        place = self._places[pipe]
        left = sum(other.device == place.device for other in self._places.values()) - 1
        if not left:
            return Event("failed", planned.name, shortage)
        del self._places[pipe]
        stop_workers([(pipe, self._processes.pop(pipe))])
        self._waiting.append(planned)
        return Event("progress", planned.name, f"waits: {place.device} has no memory for {left + 1} runs at once")

    def _replace(self, pipe: Connection) -> Event:
        planned, process, place = self._busy.pop(pipe), self._processes.pop(pipe), self._places.pop(pipe)
        how, advice = cause_of_death(process)
        self._start(place)
        return Event("failed", planned.name, f"its worker {how}{advice}")

    def stop(self) -> None:
        stop_workers(self._processes.items())


# ---------------------------------------------------------------------------------------------------- the worker


def serve(pipe: Connection, place: Place) -> None:
    """The main loop of a worker process: one run after the other until the pipe closes."""
    belong_to_parent()
    allot(place)
    warnings.simplefilter("ignore")  # what is undefined is in metrics.json, and said in the report
    opened: dict[str, Dataset] = {}
    try:
        while True:
            request = json.loads(pipe.recv_bytes())
            pipe.send_bytes(json.dumps(_carry_out(pipe, request, opened, place)).encode())
    except (EOFError, OSError):
        pass  # the parent has closed the pipe


def _carry_out(
    pipe: Connection, request: Mapping[str, Any], opened: dict[str, Dataset], place: Place
) -> dict[str, Any]:
    last = 0.0

    def progress(what: str, ready: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 0.5 or not last:
            last = now
            pipe.send_bytes(json.dumps({"progress": [what, ready / max(total, 1)]}).encode())

    try:
        asked = replace(Experiment.of(request["experiment"]), engine="serial", workers=0)
        experiment = complete(on_device(asked, place.device))
        dataset = _opened(experiment, opened, progress)
        for _ in iterate(experiment, request["folder"], resume=True, dataset=dataset, progress=progress):
            pass
    except OutOfMemory as shortage:
        return {"full": str(shortage)}
    except (UserError, RunFailed) as mistake:
        return {"failed": str(mistake)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    finally:
        forget_cached(torch.device(place.device))  # the next run may need it in other pieces
    return {"finished": True}


def _opened(experiment: Experiment, opened: dict[str, Dataset], progress: Any) -> Dataset:
    """The data of the run; the last ones stay open, since most runs of a study share them."""
    key = data_key(experiment)
    if key not in opened:
        while len(opened) > 1:
            del opened[next(iter(opened))]
        opened[key] = open_data(experiment, progress)
    return opened[key]
