"""Prove that this tree gives the bits of a former one: `make same-bits BASE=<commit>`.

    python tests/same_bits/compare.py [--base COMMIT] [--only PARTS] [--without PARTS] [--quick]

Every case of produce.py is carried out twice, side by side on this machine: with the code of BASE,
and with the code of this folder as it is now. Models are compared by SHA-256; ledgers, checkpoints,
metrics and the numbers of a report as decoded values; both through renames.toml, which also lists
the differences that are known and explained. The last lines say what differs and by how much. It
ends with 1 if anything differs that is not explained, if a case of BASE is missing here, or if a case
ended in an error.

`--only serial,resume` and `--without secure` take names of parts; `secure`, `flower`, `stream` and
`labels` stand for all parts of that kind. Secure parts compare what was opened: masks are random,
sums are not. `--keep FOLDER` keeps what both trees produced, and `--again` compares what is there
once more (after a change of renames.toml).
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from differences import Comparison, Difference, PartResult, compare_folders
from produce import NOT_QUICK, PARTS, fastest_folder
from renames import Renames

ROOT = Path(__file__).resolve().parents[2]
BASE = "35e9a6b"
SHOWN_DIFFERENCES, SHOWN_CASES = 12, 8
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
COLUMNS = (
    "part",
    "cases",
    "refused",
    "models",
    "values",
    "differ",
    "explained",
    "only base",
    "only here",
    "errors",
)


def chosen_parts(only: str, without: str, quick: bool = False) -> list[str]:
    """The parts to carry out, in order; a kind such as `secure` stands for all of its parts."""
    wanted = _parts_named(only) if only else list(PARTS)
    left_out = [*_parts_named(without), *(NOT_QUICK if quick and not only else ())]
    return [part for part in wanted if part not in left_out]


def _parts_named(words: str) -> list[str]:
    found: set[str] = set()
    for word in filter(None, words.split(",")):
        named = {part for part in PARTS if word == part or word in part.split("-")}
        if not named:
            sys.exit(f"there is no part '{word}': there are {', '.join(PARTS)}")
        found |= named
    return [part for part in PARTS if part in found]


def check_out(commit: str, folder: Path) -> None:
    """The code of a commit, in a folder; the repository itself is left as it is."""
    packed = subprocess.run(
        ["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode:
        sys.exit(f"git archive {commit}: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")


def produce(name: str, tree: Path, out: Path, parts: Sequence[str], quick: bool) -> int:
    """Carry out all cases with one tree's code; its lines are shown under its name."""
    script = Path(__file__).with_name("produce.py")
    words = [
        sys.executable,
        str(script),
        "--tree",
        str(tree),
        "--out",
        str(out),
        "--parts",
        ",".join(parts),
    ]
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(tree / "src")}
    process = subprocess.Popen(
        [*words, *(["--quick"] if quick else [])],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tree,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{name:>4} | {line.rstrip()}", flush=True)
    return process.wait()


def produce_side_by_side(
    trees: dict[str, Path], out: Path, parts: Sequence[str], quick: bool
) -> None:
    """Both trees at once, one core each; stops if either cannot."""
    codes: dict[str, int] = {}

    def work(name: str) -> None:
        codes[name] = produce(name, trees[name], out / name, parts, quick)

    threads = [threading.Thread(target=work, args=(name,)) for name in trees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [f"{name} (exit code {code})" for name, code in codes.items() if code]
    if failed:
        sys.exit(f"the cases were not all produced, see above: {' and '.join(failed)}")


# ------------------------------------------------------------ what is printed


def table_of(found: Comparison) -> list[str]:
    """One line for each part, and one for all."""
    rows = [[part, *_numbers_of(one)] for part, one in found.parts.items()]
    sums = [sum(int(row[place]) for row in rows) for place in range(1, len(COLUMNS))]
    cells = [list(COLUMNS), *rows, ["all", *map(str, sums)]]
    widths = [max(len(row[place]) for row in cells) for place in range(len(COLUMNS))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in cells]
    return [lines[0], "-" * len(lines[0]), *lines[1:-1], "-" * len(lines[0]), lines[-1]]


def _numbers_of(part: PartResult) -> list[str]:
    explained = len(part.differences) - len(part.unexplained)
    counts = [part.cases, part.refused, part.models, part.values, len(part.unexplained), explained]
    return [str(n) for n in [*counts, len(part.base_only), len(part.here_only), len(part.errors)]]


def details_of(found: Comparison, names: Renames) -> list[str]:
    """What differs and by how much, what is explained and by what, and what only one tree has."""
    parts = found.parts.values()
    differences = [one for part in parts for one in part.unexplained]
    lines = [*_listed("error", [line for part in parts for line in part.errors])]
    alike = _cases_that_differ_alike(differences)
    for cases, those in alike[:SHOWN_CASES]:
        lines += _differences_of_case(cases, those)
    if len(alike) > SHOWN_CASES:
        others = sorted(case for cases, _ in alike[SHOWN_CASES:] for case in cases)
        lines.append(f"… and in {len(others)} other cases: {', '.join(others)[:1500]}")
    lines += _explanations(found)
    moved = {case for part in parts for case in part.moved_out}
    lost = [case for part in parts for case in part.base_only if case not in moved]
    lines += _listed("only in base", lost)
    lines += _listed("only here", [case for part in parts for case in part.here_only])
    if moved:
        gone = ", ".join(f"{name} ({where})" for name, where in names.methods_moved_out.items())
        lines.append(
            f"{len(moved)} cases only in base are explained by the table; methods that left the"
            f" catalogue: {gone}"
        )
    lines += [
        f"former name still in use here: {name}, {n} cases"
        for name, n in found.former_names.items()
    ]
    return lines


def _cases_that_differ_alike(
    differences: Sequence[Difference],
) -> list[tuple[list[str], list[Difference]]]:
    """Cases by what differs in them: those that differ in the same way together, the most first."""
    by_case: dict[str, list[Difference]] = {}
    for one in differences:
        by_case.setdefault(one.case, []).append(one)
    alike: dict[object, list[str]] = {}
    for case, those in by_case.items():
        alike.setdefault(tuple((one.path, one.said) for one in those), []).append(case)
    found = [(cases, by_case[cases[0]]) for cases in alike.values()]
    return sorted(found, key=lambda pair: -len(pair[0]) * len(pair[1]))


def _differences_of_case(cases: Sequence[str], differences: Sequence[Difference]) -> list[str]:
    others = f" and {len(cases) - 1} cases more: {', '.join(cases[1:])[:600]}" if cases[1:] else ""
    lines = [f"{cases[0]}: {len(differences)} differ{others}"]
    ordered = sorted(differences, key=lambda one: -one.amount)
    lines += [f"    {one.path}: {one.said}" for one in ordered[:SHOWN_DIFFERENCES]]
    return lines + (["    …"] if len(ordered) > SHOWN_DIFFERENCES else [])


def _explanations(found: Comparison) -> list[str]:
    reasons: dict[str, list[Difference]] = {}
    for part in found.parts.values():
        for one in part.differences:
            if one.why:
                reasons.setdefault(one.why, []).append(one)
    most = {why: max(one.amount for one in covered) for why, covered in reasons.items()}
    return [
        f"explained, {len(covered)} differences of at most {most[why]:.3g}: {why}"
        for why, covered in reasons.items()
    ]


def _listed(word: str, items: Iterable[str]) -> list[str]:
    all_of_them = list(items)
    more = [f"{word}: … and {len(all_of_them) - 20} more"] if len(all_of_them) > 20 else []
    return [f"{word}: {item}" for item in all_of_them[:20]] + more


# ------------------------------------------------------------ the command


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", default=BASE, help=f"the former commit (default: {BASE})")
    parser.add_argument(
        "--only", default="", metavar="PARTS", help="these parts, or kinds of parts"
    )
    parser.add_argument("--without", default="", metavar="PARTS", help="all parts but these")
    parser.add_argument("--quick", action="store_true", help="fewer methods: some 90 seconds")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what both trees produced")
    parser.add_argument("--again", action="store_true", help="compare what --keep FOLDER holds")
    return parser.parse_args(words)


def main() -> None:
    """Produce, compare, and say what differs."""
    given, names, began = arguments(), Renames.read(), time.perf_counter()
    parts = chosen_parts(given.only, given.without, given.quick)
    with tempfile.TemporaryDirectory(prefix="same-bits-", dir=fastest_folder()) as temporary:
        out = (given.keep or Path(temporary) / "artefacts").resolve()
        if not given.again:
            if given.keep and given.keep.exists() and any(given.keep.iterdir()):
                sys.exit(
                    f"{given.keep} is not empty: choose another folder, or compare it with --again"
                )
            check_out(given.base, Path(temporary) / "base")
            trees = {"base": Path(temporary) / "base", "here": ROOT}
            produce_side_by_side(trees, out, parts, given.quick)
        found = compare_folders(out / "base", out / "here", names)
    print("\n".join(["", *table_of(found), "", *details_of(found, names)]))
    seconds = time.perf_counter() - began
    verdict = (
        "differs" if found.failed else "the same bits" if found.parts else "nothing was compared"
    )
    print(f"{verdict}: this tree against {given.base}, {seconds:.0f} s")
    sys.exit(1 if found.failed or not found.parts else 0)


if __name__ == "__main__":
    main()
