"""A model's folder from its tensors, whoever they are of: shards, what describes them, card, lineage; whole or not there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rollout.errors import SpecError
from rollout.runs.export.adapter import ADAPTER_CONFIG
from rollout.runs.export.card import render_card
from rollout.runs.export.folder import new_folder
from rollout.runs.export.lineage import Lineage, digest_of_file, encode_lineage, read_lineage
from rollout.runs.export.verify import find_damage
from rollout.runs.pipeline import LINEAGE_FILE
from rollout.weights.shards import Outgoing, combine_raw, num_bytes, num_elements, write_shards

MODEL_STEM, ADAPTER_STEM = "model", "adapter_model"
CARD = "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a folder holds: ``verify`` raises, once all were read, unless they are what they should be.

    ``describe`` writes the other files into the folder; it is given the tensors' names.
    """

    tensors: Sequence[Outgoing]
    verify: Callable[[], None]
    describe: Callable[[Path, Sequence[str]], None]


def write_model(target: Path, described: Lineage, content: Content, shard_bytes: int) -> Lineage:
    """Write a folder, an adapter as one file; the lineage with its digests. Raises SpecError, StoreError."""
    size = sum(num_bytes(one.info) for one in content.tensors)
    adapter = described.form == "adapter"
    with new_folder(target, size) as work:
        digests = write_shards(
            work,
            content.tensors,
            stem=ADAPTER_STEM if adapter else MODEL_STEM,
            size_max=size if adapter else shard_bytes,
        )
        content.verify()
        content.describe(work, [one.info.name for one in content.tensors])
        lineage = _complete(described, work, digests, content.tensors)
        (work / CARD).write_text(render_card(lineage), encoding="utf-8")
        (work / LINEAGE_FILE).write_bytes(encode_lineage(lineage))
    return lineage


def write_peft(work: Path, config: dict[str, Any]) -> None:
    """What PEFT knows an adapter by."""
    (work / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def find_same(target: Path, described: Lineage) -> Lineage:
    """What a repeat of an export that has ended finds. Raises SpecError for anything else that is there."""
    found = read_lineage(target) if target.is_dir() else None
    if found is None:
        raise SpecError(
            f"--to {target}: something else is there; name a folder that is not, or is empty"
        )
    if found.subject != described.subject:
        raise SpecError(
            f"--to {target}: it holds the {found.form} weights of run {found.run}, step {found.step}, in"
            f" {found.dtype}; name another folder"
        )
    if damage := find_damage(target, found):
        raise SpecError(
            f"--to {target}: it holds these very weights, but {damage[0]}; move it away and export again"
        )
    return found


def _complete(
    described: Lineage, work: Path, digests: dict[str, bytes], tensors: Sequence[Outgoing]
) -> Lineage:
    return msgspec.structs.replace(
        described,
        num_parameters=sum(num_elements(one.info) for one in tensors),
        weights=combine_raw(digests),
        tensors={name: digest.hex() for name, digest in sorted(digests.items())},
        files={path.name: digest_of_file(path) for path in sorted(work.iterdir())},
    )
