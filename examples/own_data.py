"""Images of one's own, named by a CSV: here 245 phantoms of four hospitals, written to `own-data/`
first.

East does not label Cardiomegaly, some labels are uncertain, and Isle has only five images.

python examples/own_data.py                # writes own-data/ and trains on it
python examples/own_data.py --only-write   # then: feddraw init own-data/labels.csv; feddraw run
labels.toml

python examples/own_data.py --classes      # writes own-classes/: 240 drawings, each of one class,
in a folder per class, and a table of them with the columns dx and grade
"""

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from feddraw import Experiment, iterate
from feddraw.data.datasets.phantom import phantom

FOLDER = Path("own-data")
CLASSES = Path("own-classes")
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


def write_classes() -> None:
    """Rings, discs, spots and nothing on a grey ground: a folder per class, and a table."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(240):
        name = str(rng.choice(["disc", "normal", "ring", "spot"], p=[0.2, 0.3, 0.15, 0.35]))
        path = Path("folders") / name / f"{number:03d}.png"
        (CLASSES / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawing(name, rng)).save(CLASSES / path)
        grade = ["normal", "spot", "ring", "disc"].index(name)
        rows.append([path, f"P{number // 2:03d}", HOSPITALS[number], name, min(grade, 2)])
    with (CLASSES / "lesions.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["image", "patient", "hospital", "dx", "grade"], *rows])


def drawing(name: str, rng: np.random.Generator) -> np.ndarray:
    """48 × 48 grey pixels with a shape somewhere."""
    image = rng.normal(150, 20, (48, 48))
    across, down = np.meshgrid(np.arange(48), np.arange(48))
    far = np.hypot(across - rng.uniform(16, 32), down - rng.uniform(16, 32))
    shapes = {"disc": far < 11, "ring": (far > 6) & (far < 10), "spot": far < 5}
    if name in shapes:
        image[shapes[name]] -= rng.uniform(60, 100)
    return np.clip(image, 0, 255).astype(np.uint8)


def main() -> None:
    if "--classes" in sys.argv:
        write_classes()
        print(f"{CLASSES}/folders with a folder per class and {CLASSES}/lesions.csv are written")
        return
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
