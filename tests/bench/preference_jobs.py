"""Jobs of rows to prefer: all prompts and answers of one length, no padding on either side.

Both sides take the rows in the file's order, so that step by step they learn from the same ones.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

from jobs import MODEL, ROWS, Job, model_folder, random_text, write_rows
from safetensors.torch import save_file

from rollout.learner.model.scorer import load_scorer
from rollout.models.scoring import write_score_config
from rollout.rendering.tokenizer import load_tokenizer

PROMPT_TOKENS, ANSWER_TOKENS = 64, 64
"""The end token is an answer's last."""
PAIRS_PER_STEP, LABELLED_PER_STEP = 8, 16
HEAD_SEED = 5


def dpo_job(folder: Path, model: str = MODEL) -> Job:
    """Pairs, the starting model as the reference."""
    return _job("dpo", model_folder(model), _pairs(folder), PAIRS_PER_STEP)


def rm_job(folder: Path, model: str = MODEL) -> Job:
    """Pairs, and one folder that holds a reward model with its head."""
    return _job("rm", _scorer(folder / "scorer", model), _pairs(folder), PAIRS_PER_STEP)


def kto_job(folder: Path, model: str = MODEL) -> Job:
    """Single answers, good and bad in turn."""
    noise = random.Random(3)
    rows = [
        {"prompt": _prompt(noise), "completion": _answer(noise), "label": i % 2 == 0}
        for i in range(ROWS)
    ]
    data = write_rows(folder / "labelled.jsonl", rows)
    return _job("kto", model_folder(model), data, LABELLED_PER_STEP)


def _job(kind: Any, model: str, data: str, batch_size: int) -> Job:
    return Job(
        kind=kind,
        model=model,
        data=data,
        batch_size=batch_size,
        trl_rows=batch_size,
        ordered=True,
    )


def _pairs(folder: Path) -> str:
    noise = random.Random(2)
    rows = [
        {"prompt": _prompt(noise), "chosen": _answer(noise), "rejected": _answer(noise)}
        for _ in range(ROWS)
    ]
    return write_rows(folder / "pairs.jsonl", rows)


def _prompt(noise: random.Random) -> str:
    return random_text(noise, PROMPT_TOKENS)


def _answer(noise: random.Random) -> str:
    return random_text(noise, ANSWER_TOKENS - 1)


def _scorer(folder: Path, model: str) -> str:
    """The model with a head of its own, which both sides load."""
    start = Path(model_folder(model))
    shutil.copytree(start, folder, dirs_exist_ok=True)
    tensors = {name: p.detach() for name, p in load_scorer(start, HEAD_SEED).named_parameters()}
    save_file(tensors, folder / "model.safetensors")
    write_score_config(folder, load_tokenizer(folder).pad_id)
    return str(folder)
