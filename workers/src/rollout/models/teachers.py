"""Whether a model can teach another token by token: the same ids must mean the same text."""

from __future__ import annotations

import json
from pathlib import Path

from rollout.errors import SpecError
from rollout.models.roles import TEACHER_FIELD
from rollout.models.shapes import read_shape


def check_teacher(policy: Path, teacher: Path) -> None:
    """Raise SpecError unless every token of the policy is the teacher's too.

    A teacher may have more rows in its head than the policy (larger models of a family are padded
    further: Qwen2.5-7B to 152,064, 0.5B to 151,936), never fewer.
    """
    if (own := read_shape(policy).vocab) > (other := read_shape(teacher).vocab):
        raise SpecError(
            f"{TEACHER_FIELD}: its vocabulary has {other} tokens, the model's has {own}: it cannot score"
            " all that the model may sample; use a teacher of the same family"
        )
    differing = sorted(_tokens(policy).items() ^ _tokens(teacher).items(), key=lambda one: one[1])
    if differing:
        token, place = differing[0]
        raise SpecError(
            f"{TEACHER_FIELD}: its tokenizer and the model's differ in {len(differing)} entries, the first"
            f" {token!r} = {place}: it would score other text than was sampled; use a teacher of the same"
            " family"
        )


def _tokens(folder: Path) -> dict[str, int]:
    """Ids by token, special ones included. Raises SpecError without a ``tokenizer.json``."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise SpecError(f"{path} is missing: save the tokenizer beside the model (save_pretrained)")
    found = json.loads(path.read_text(encoding="utf-8"))
    known = found["model"]["vocab"]
    tokens = dict(known) if isinstance(known, dict) else {t: i for i, (t, _) in enumerate(known)}
    return tokens | {one["content"]: one["id"] for one in found.get("added_tokens", ())}
