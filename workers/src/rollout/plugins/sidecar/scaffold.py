"""The first files of a plugin, which keep the contract as they are."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from rollout.errors import SpecError
from rollout.plugins.sidecar.manifest import CONTRACT_MIN, MEMORY_CONTRACT, Kind

TEMPLATES = "rollout.plugins.sidecar.templates"


def write_plugin(folder: Path, kind: Kind) -> list[Path]:
    """Write a plugin in Python into a folder that is not there yet; its files. Raises SpecError."""
    if folder.exists():
        raise SpecError(f"{folder} is there already: name a folder that is not")
    name = folder.name
    files = {
        "plugin.yaml": MANIFEST.format(
            contract=CONTRACTS.get(kind, CONTRACT_MIN),
            name=name,
            kind=kind,
            parameter=PARAMETERS.get(kind, WORD),
        ),
        "plugin.py": resources.files(TEMPLATES).joinpath(f"{kind}.txt").read_text("utf-8"),
        "examples.jsonl": resources.files(TEMPLATES)
        .joinpath(f"{kind}-examples.jsonl")
        .read_text("utf-8"),
    }
    folder.mkdir(parents=True)
    written = []
    for file, text in files.items():
        (folder / file).write_text(text, "utf-8")
        written.append(folder / file)
    return written


MANIFEST = """\
contract: {contract}
name: {name}
version: 0.1.0
kind: {kind}
description: What it does, in one line.
command: [python, plugin.py]
parameters:
- {{{parameter}}}
"""
WORD = "name: word, default: please, description: What is listened for."
PARAMETERS: Mapping[Kind, str] = {
    "tracker": 'name: path, default: ":memory:", description: A file of SQLite; unset nothing is kept.',
}
"""What the templates take."""
CONTRACTS: Mapping[Kind, int] = {"environment": MEMORY_CONTRACT}
"""What the templates need."""


def contract_text() -> str:
    """The contract as protobuf, for plugins in other languages."""
    place = resources.files("rollout.plugins.sidecar.contract").joinpath("plugin.proto")
    return place.read_text("utf-8")
