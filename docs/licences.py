"""Write docs/licences.md: what the package needs, directly and behind that, with version and
licence.

    python docs/licences.py

Reads the metadata of what is installed, so run it where all extras are.
"""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

EXTRAS = (
    "densenet",
    "dicom",
    "export",
    "flower",
    "track",
)  # for users; nvflare wants an environment of its own
HEAD = """# Dependencies and their licences

Made by `python docs/licences.py` from the metadata of the installed packages; the exact versions that are tested are in
`constraints.txt`. Nothing of these packages is copied into this one.
"""


def licence(package: metadata.Distribution) -> str:
    """The licence's short name: as an expression, from the classifiers, or the first words of the
    field.
    """
    about = package.metadata
    if expression := about.get("License-Expression"):
        return expression
    classified = [
        one.rpartition(":: ")[2]
        for one in about.get_all("Classifier", [])
        if one.startswith("License ::")
    ]
    named = (about.get("License") or "").strip().splitlines()
    return ", ".join(classified) or (named[0][:60] if named else "not stated")


def needs(package: metadata.Distribution) -> list[str]:
    """What a package requires here and now, without extras."""
    wanted = map(Requirement, package.requires or [])
    return [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]


def found(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def behind(names: list[str]) -> dict[str, metadata.Distribution]:
    """Everything that these packages need in turn."""
    known: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        package = found(waiting.pop())
        if package is not None and package.name not in known:
            known[package.name] = package
            waiting += needs(package)
    return known


def rows(packages: dict[str, metadata.Distribution]) -> list[str]:
    ordered = sorted(packages.values(), key=lambda package: package.name.lower())
    return [f"| {package.name} | {package.version} | {licence(package)} |" for package in ordered]


def main() -> None:
    here = Path(__file__)
    project = tomllib.loads((here.parent.parent / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    core = [Requirement(line).name for line in project["dependencies"]]
    chosen = [
        Requirement(line).name
        for extra in EXTRAS
        for line in project["optional-dependencies"].get(extra, [])
    ]
    direct = {package.name: package for name in core if (package := found(name))}
    rest = {name: package for name, package in behind(core).items() if name not in direct}
    optional = {
        name: package for name, package in behind(chosen).items() if name not in direct | rest
    }
    parts = [HEAD]
    for title, packages in (
        ("Needed", direct),
        ("Behind those", rest),
        (f"Extras ({', '.join(EXTRAS)})", optional),
    ):
        lines = [
            f"## {title}",
            "",
            "| package | version | licence |",
            "|---|---|---|",
            *rows(packages),
            "",
        ]
        parts.append("\n".join(lines))
    here.with_suffix(".md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
