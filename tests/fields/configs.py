"""From a manifest to what every worker process reads, without a look at the world: one tiny model stands for all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rollout.models.resolve import resolve_model
from rollout.models.roles import further_models
from rollout.rendering import build_renderer
from rollout_api import parse_run, resolve
from rollout_api.worker import WorkerConfig


def _pack() -> bytes:
    """A wheel of one file, the same bytes each time."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo("their_rewards.py"), "ONE = 1\n")
    return packed.getvalue()


WHEEL = _pack()
WHEEL_DIGEST = f"sha256:{hashlib.sha256(WHEEL).hexdigest()}"
DIGEST = "blake3:" + "0" * 64
TINY = "rollout://tiny-qwen2?hidden=32&layers=2&heads=2"
ROWS = [
    {
        "prompt": f"{n}+{n}=",
        "answer": str(2 * n),
        "question": f"what is {n}+{n}?",
        "solution": f"{2 * n}!",
        "chosen": str(2 * n),
        "rejected": "?" * (1 + n % 3),
        "preferred": f"{2 * n} it is",
        "declined": "no",
        "label": n % 2 == 0,
        "verdict": n % 3 == 0,
        "margin": n / 4,
        "messages": [
            {"role": "user", "content": f"double {n}"},
            {"role": "assistant", "content": f"it is {2 * n}"},
        ],
    }
    for n in range(10)
]


CODE = """
class Game:
    def __init__(self, word="hello", **others):
        self.word = word

    def rows(self, split):
        return [{"prompt": f"{split} {self.word} {n}", "answer": "4"} for n in range(8)]

    def build(self, row):
        return Talk(self.word, row)


class Other(Game):
    def __init__(self, **others):
        super().__init__("other")


class Talk:
    def __init__(self, word, row):
        self.word, self.row = word, row

    def start(self):
        return f"{self.word}: {self.row['prompt']}"

    def step(self, reply):
        return True


class Quiz:
    def __init__(self, word="hello", **others):
        self.word = word

    def rows(self, split):
        return [{"prompt": f"{split} {self.word} {n}", "answer": "4"} for n in range(8)]

    def score(self, prompts, completions, rows):
        return [1.0] * len(rows)


def judge(prompts, completions, rows, wanted="4", changed="1"):
    return [float(one.text == wanted) + len(changed) for one in completions]


def slow(prompts, completions, rows):
    return [0.0] * len(rows)
"""


OBJECTIVES = """
from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    slope: float = 1.0


def gentle(tokens, settings: Settings):
    return -settings.slope * tokens.advantages_C * tokens.log_ratios_C.exp()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder with rows, a data set and a model. ``scorer`` is the same model with a head."""

    folder: Path
    model: Path
    scorer: Path


def build_place(folder: Path) -> Place:
    """Everything that documents name, made once."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "broken.jsonl").write_text('{"prompt": 1}\n' + (folder / "rows.jsonl").read_text())
    (folder / "code").mkdir()
    (folder / "code" / "my_code.py").write_text(CODE)
    for kind in ("reward", "environment", "tool", "evaluation", "tracker", "data"):
        (folder / "code" / kind).mkdir()
        (folder / "code" / kind / "plugin.yaml").write_text(
            "{contract: 1, name: a, version: '1', command: [python], parameters: [{name: word}],"
            f" kind: {kind}}}"
        )
    (folder / "code" / "books.txt").write_text("two")
    (folder / "a.whl").write_bytes(WHEEL)
    _write_dataset(folder / "dataset")
    _install(folder / "site")
    model = resolve_model(TINY, cache_dir=folder / "models").path
    return Place(folder=folder, model=model, scorer=_scorer(model, folder / "scorer"))


@contextmanager
def standing_in(place: Place) -> Iterator[None]:
    """Relative paths start in the place, and its packages are installed."""
    before, paths = Path.cwd(), list(sys.path)
    os.chdir(place.folder)
    sys.path.insert(0, str(place.folder / "site"))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = paths
        for name in ("my_code", "their_objectives", "rollout_user_my_code"):
            sys.modules.pop(name, None)


def _install(folder: Path) -> None:
    """A package with an objective, as an installer would leave it."""
    info = folder / "their_objectives-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "their_objectives.py").write_text(OBJECTIVES)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-objectives\nVersion: 1.0\n")
    points = "[rollout.algorithms]\ngentle = their_objectives:gentle\n"
    (info / "entry_points.txt").write_text(points)


def _write_dataset(folder: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_list(ROWS).save_to_disk(folder)


def _scorer(model: Path, folder: Path) -> Path:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    found = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1)
    found.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


def build_config(document: Mapping[str, Any], place: Place) -> WorkerConfig:
    """The configuration of the run's processes on this machine."""
    spec = resolve(parse_run(document).spec).spec
    engine = spec.actors.engine.chosen if spec.actors.engine else "embedded"
    models = {
        one.role: str(place.scorer if one.role.startswith("reward/") else place.model)
        for one in further_models(spec)
    }
    folder = place.folder / "run"
    return WorkerConfig.model_validate(
        {
            "run": {"name": "run", "uid": "uid"},
            "specDigest": DIGEST,
            "spec": spec.model_dump(mode="json", exclude_none=True),
            "resolved": {
                "modelPath": str(place.model),
                "modelDigest": DIGEST,
                "dtype": spec.model.dtype or "Float32",
                "stopTokenIds": _stop_tokens(place.model, spec.model.chat_template),
                "promptTokensMax": 64,
                "models": models,
                "engine": "vllm" if engine == "vllm" else "embedded",
            },
            "layout": {
                "runDir": str(folder),
                "coordinatorUrl": "http://127.0.0.1:1",
                "tokenFile": str(folder / "token"),
                "objectsDir": str(folder / "objects"),
                "ledgerPath": str(folder / "ledger.db"),
            },
        }
    )


@cache
def _stop_tokens(model: Path, template: str | None) -> tuple[int, ...]:
    return tuple(build_renderer(model, template).stop_token_ids)
