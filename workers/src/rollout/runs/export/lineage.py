"""Where an exported model comes from: ``rollout_lineage.json`` in its folder, which digests every byte beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from blake3 import blake3

from rollout.errors import StoreError
from rollout.runs.pipeline import LINEAGE_FILE

LINEAGE_FORMAT = 1
LINEAGE_BYTES_MAX = 256 << 20

Form = Literal["full", "adapter", "merged"]
"""All weights as they were trained; an adapter for PEFT; or base and adapter summed."""


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """The model that a run began with; ``digest`` is over its files."""

    uri: str
    digest: str
    revision: str | None = None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of an evaluation of these weights, with its 95 % interval."""

    name: str
    split: str
    metric: str
    value: float
    low: float
    high: float
    num_prompts: int


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """What a model was made of.

    ``version`` is the digest of the weights as the run committed them, ``weights`` that of the tensors in the
    folder: equal where these went out unchanged. ``source`` names what was trained on, ``data`` its digests by role.
    ``tensors`` and ``files`` are blake3 hex digests by name; the
    folder's README.md, which people edit, is not among the files. ``evaluations`` are those of this step.
    """

    format: int = LINEAGE_FORMAT
    run: str
    uid: str
    spec_digest: str
    algorithm: str
    step: int
    lineage: int
    chain: str
    grade: str
    base: Base
    source: str
    data: dict[str, str]
    evaluations: tuple[Measured, ...]
    form: Form
    scores: bool
    dtype: str
    num_parameters: int
    version: str
    weights: str
    tensors: dict[str, str]
    files: dict[str, str]

    @property
    def subject(self) -> tuple[object, ...]:
        """What an export is of: equal for a repeat of it."""
        return (self.uid, self.step, self.lineage, self.form, self.dtype, self.version)


def read_lineage(folder: Path) -> Lineage | None:
    """A folder's own; None where it has none. Raises StoreError for one that cannot be read."""
    path = folder / LINEAGE_FILE
    try:
        with path.open("rb") as file:
            return parse_lineage(file.read(LINEAGE_BYTES_MAX), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def parse_lineage(data: bytes, where: str) -> Lineage:
    """The lineage in a file's bytes. Raises StoreError for what is none, or is of another format."""
    try:
        found = msgspec.json.decode(data, type=Lineage)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise StoreError(f"{where} cannot be read: {error}") from error
    if found.format != LINEAGE_FORMAT:
        raise StoreError(
            f"{where} has format {found.format}, this version of rollout reads {LINEAGE_FORMAT}: read it"
            " with the version of rollout that wrote it"
        )
    return found


def encode_lineage(lineage: Lineage) -> bytes:
    """The file's content: equal lineages, equal bytes."""
    return msgspec.json.format(msgspec.json.encode(lineage), indent=1) + b"\n"


def digest_of_file(path: Path) -> str:
    """blake3 hex of a file. Raises OSError."""
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
