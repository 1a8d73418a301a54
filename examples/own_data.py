"""Images of one's own, named by a CSV: here 245 phantoms of four hospitals, written to `own-data/`
first.

East does not label Cardiomegaly, some labels are uncertain, and Isle has only five images.

python examples/own_data.py                # writes own-data/ and trains on it
python examples/own_data.py --only-write   # then: feddraw init own-data/labels.csv; feddraw run
labels.toml
"""

import csv
import sys
from pathlib import Path

from PIL import Image

from feddraw import Experiment, iterate
from feddraw.data.datasets.phantom import phantom

FOLDER = Path("own-data")
HOSPITALS = ["North"] * 120 + ["East"] * 80 + ["South"] * 40 + ["Isle"] * 5


def write() -> None:
    """A table as hospitals might have it: a path, a patient, a site, and one column per finding."""
    dataset = phantom(size=32, mix="chexpert", train=len(HOSPITALS), validation=0, test=0)
    findings = ("Edema", "Pleural Effusion", "Cardiomegaly")
    places = [dataset.findings.index(finding) for finding in findings]
    (FOLDER / "images").mkdir(parents=True)
    with (FOLDER / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["file", "patient", "hospital", *findings])
        for number, hospital in enumerate(HOSPITALS):
            Image.fromarray(dataset.images[number]).save(FOLDER / "images" / f"{number:03d}.png")
            labels = [int(value) for value in dataset.labels.values[number, places]]
            table.writerow(
                [
                    f"images/{number:03d}.png",
                    f"P{number // 2:03d}",
                    hospital,
                    *cells(labels, hospital, number),
                ]
            )


def cells(labels: list[int], hospital: str, number: int) -> list[object]:
    """The labels as they are written: -1 is uncertain, a blank cell is unknown."""
    written: list[object] = list(labels)
    if number % 16 == 0:
        written[0] = -1
    if hospital == "East":
        written[2] = ""
    return written


def main() -> None:
    if not FOLDER.exists():
        write()
    if "--only-write" in sys.argv:
        print(f"{FOLDER}/labels.csv and {len(HOSPITALS)} images are written")
        return
    experiment = Experiment(
        data=str(FOLDER / "labels.csv"), scenario="by_site", rounds=2, engine="serial"
    )
    for result in iterate(
        experiment.with_settings(
            {"data.normalize": "measured", "training.batch_size": 16, "training.epochs": 1}
        )
    ):
        print(
            result.round,
            {hospital: round(weight, 3) for hospital, weight in result.weights.items()},
        )
    for finding, area in result.metrics.test.auc.per_class.items():
        print(f"{finding}: test AUC {area:.3f}")


if __name__ == "__main__":
    main()
