"""Whether a folder holds what its lineage says: every file by its digest, and which tensor is not what it was."""

from __future__ import annotations

from pathlib import Path

from rollout.errors import StoreError
from rollout.models.files import model_files
from rollout.runs.export.lineage import Lineage, digest_of_file
from rollout.runs.pipeline import LINEAGE_FILE
from rollout.weights.numbers import read_tensors
from rollout.weights.shards import digest_file

WEIGHTS = ".safetensors"
NAMED_MAX = 5


def find_damage(folder: Path, lineage: Lineage) -> list[str]:
    """What differs, a sentence each; empty when every file that a loader reads is as it was exported."""
    there = {path.name for path in model_files(folder)} - {LINEAGE_FILE}
    found = [f"{name} was not exported" for name in sorted(there.difference(lineage.files))]
    found += [_judge(folder, name, digest, lineage) for name, digest in lineage.files.items()]
    return [one for one in found if one]


def _judge(folder: Path, name: str, digest: str, lineage: Lineage) -> str:
    if Path(name).name != name:
        return f"{name} is no file of this folder"
    path = folder / name
    try:
        if digest_of_file(path) == digest:
            return ""
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read: {error}"
    return f"{name} is not what was exported{_tensors_of(path, lineage)}"


def _tensors_of(path: Path, lineage: Lineage) -> str:
    """Which of a weight file's tensors differ."""
    if path.suffix != WEIGHTS:
        return ""
    try:
        infos = read_tensors(path)
        digests = digest_file(path, infos)
    except (StoreError, KeyError) as error:
        return f" ({error})"
    wrong = sorted(
        name for name, digest in digests.items() if lineage.tensors.get(name) != digest.hex()
    )
    if not wrong:
        return ": its header was changed or a tensor is missing, those that are there are right"
    more = f" and {len(wrong) - NAMED_MAX} more" if len(wrong) > NAMED_MAX else ""
    return f": tensor {', '.join(wrong[:NAMED_MAX])}{more} changed"
