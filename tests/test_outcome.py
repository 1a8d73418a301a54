"""What decides a run's outcome, and what only says how it is carried out."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from itertools import islice
from pathlib import Path

import pytest

from feddraw.data.scenarios.constructions import CONSTRUCTIONS
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.running import iterate, run
from feddraw.experiment.settings import PRESETS, Experiment
from feddraw.results.run_collection import collect_runs
from feddraw.study.plan import read_study
from run_folders import make_run
from small import small


def test_runs_on_two_gpus_are_repeats_of_one_scenario(tmp_path: Path) -> None:
    for seed, device in enumerate(("cuda:0", "cuda:1", "cuda:0")):
        make_run(tmp_path / str(seed), seed=seed, settings={"training.device": device})
    found = collect_runs([tmp_path])
    assert found.scenarios == ["CHM-2"]
    assert found.methods == ["feddraw"]
    assert not [note for note in found.notes if "device" in note]


def test_kinds_of_device_and_precision_do_not_split_the_statistics_but_are_said(
    tmp_path: Path,
) -> None:
    for seed, (device, amp) in enumerate((("cpu", "off"), ("cuda:1", "off"), ("cuda", "bf16"))):
        make_run(
            tmp_path / str(seed),
            seed=seed,
            settings={"training.device": device, "training.amp": amp},
        )
    found = collect_runs([tmp_path])
    assert found.scenarios == ["CHM-2"]
    assert found.methods == ["feddraw"]
    said = "\n".join(found.notes)
    assert "the same kind of device (cpu: 1 runs, cuda: 2 runs)" in said
    assert "the same training.amp (bf16: 1 runs, off: 2 runs)" in said


def test_precision_that_is_compared_tells_runs_apart(tmp_path: Path) -> None:
    for amp in ("off", "bf16"):
        for seed in (0, 1):
            make_run(tmp_path / f"{amp}{seed}", seed=seed, settings={"training.amp": amp})
    assert sorted(collect_runs([tmp_path]).methods) == ["feddraw (amp=bf16)", "feddraw (amp=off)"]


def test_a_run_begun_on_one_device_resumes_on_another(tmp_path: Path) -> None:
    whole = run(small(rounds=2)).last.model.params
    started = small(rounds=2).with_settings({"training.device": "cpu"})
    list(islice(iterate(started, tmp_path / "run"), 1))
    elsewhere = small(rounds=2).with_settings({"training.device": "cpu:1"})
    assert (run(elsewhere, tmp_path / "run", resume=True).last.model.params == whole).all()
    other = small(rounds=2).with_settings({"training.amp": "bf16"})
    with pytest.raises(UserError, match=r"was run with training\.amp = off, not bf16"):
        run(other, tmp_path / "run", resume=True)


def test_a_device_is_no_part_of_a_studys_keys_and_no_reason_to_run_twice(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text("seed = [0, 1]")
    keys = [
        [planned.key for planned in read_study(file, {"training.device": d})]
        for d in ("cuda:0", "cuda:1", "cpu")
    ]
    assert keys[0] == keys[1] == keys[2]
    file.write_text("training.device = ['cuda:0', 'cuda:1']")
    with pytest.raises(UserError, match=r"differ only in how they are computed"):
        read_study(file)


def test_runs_that_a_change_from_outside_makes_equal_are_told_as_such(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('[scenario]\nname = "CHM-2"\nscale = [0.01, 0.02]')
    with pytest.raises(
        UserError,
        match=r"are the same run, because --set replaced the settings in which they differed",
    ):
        read_study(file, {"scenario": "iid"})


def test_the_paper_preset_takes_the_data_set_of_the_scenario() -> None:
    made_of = {"CHX-1": "chexpert", "chx-7": "chexpert", "CHM-3": "chestmnist", "iid": "chestmnist"}
    for scenario, data in made_of.items():
        found = complete_settings(
            Experiment.preset("paper").with_settings({"scenario": scenario})
        ).data
        assert not isinstance(found, str)
        assert (found["name"], found["size"], found["clahe"]) == (data, 224, True)
    own = Experiment.preset("paper").with_settings({"scenario": "CHX-1", "data": "phantom"})
    assert own.section("data")[0] == "phantom"


def test_the_page_of_the_papers_settings_has_every_setting_of_the_preset() -> None:
    page = (Path(__file__).parent.parent / "docs" / "paper-settings.md").read_text(encoding="utf-8")
    for name, value in PRESETS["paper"].items():
        told = "true" if value is True else {1e-5: "1e-5", 5e-3: "5e-3"}.get(value, value)
        told = f'"{told}"' if isinstance(value, str) else told
        assert f"`{name} = {told}`" in page, name
    for construction in CONSTRUCTIONS:
        assert f"| `{construction}`" in (
            Path(__file__).parent.parent / "docs" / "data.md"
        ).read_text(encoding="utf-8")


def test_the_page_says_what_a_cache_of_updates_would_save(
    capsys: pytest.CaptureFixture[str],
) -> None:
    project = Path(__file__).parent.parent
    spec = spec_from_file_location("shared_updates", project / "benchmarks" / "shared_updates.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    script.reckon(project / "studies" / "nih-replication.toml")
    told = capsys.readouterr().out.split("\n", 1)[1]
    assert told in (project / "docs" / "scale.md").read_text(encoding="utf-8")
