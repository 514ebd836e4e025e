"""Nobody says which experts an engine's tokens went to: reinforcement of such a model is refused at the plan."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rollout.entrypoints.resolve import look_at_models
from rollout.errors import SpecError
from rollout.models.resolve import resolve_model
from rollout.runs.manifest import Document
from rollout.runs.prepare import prepare_run
from rollout.runs.resolve import ResolveRequest

GRPO = {
    "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
    "environment": {"builtin": {"name": "arithmetic"}},
    "rewards": [{"builtin": {"name": "exact-match"}}],
    "maxSteps": 1,
}
SFT = {
    "algorithm": {"sft": {}},
    "data": {"jsonl": {"uri": "rows.jsonl", "answerField": "completion"}},
    "maxSteps": 1,
}


@pytest.fixture
def ask(tmp_path):
    """A look at a model folder that names so many experts."""
    folder = tmp_path / "model"
    shutil.copytree(Path(resolve_model("rollout://tiny-qwen2").path), folder)

    def look(train, experts, engine):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"num_local_experts": experts}))
        spec = {"model": {"uri": f"file://{folder}"}, "train": train}
        if engine:
            spec["actors"] = {"engine": {engine: {}}}
        data = {
            "apiVersion": "rollout.dev/v1alpha1",
            "kind": "RolloutRun",
            "metadata": {"name": "experts"},
            "spec": spec,
        }
        document = Document(source=str(tmp_path / "run.yaml"), data=data, lines={(): 1})
        prepared = prepare_run(document)
        wanted = prepared.spec.model_dump(mode="json", exclude_none=True)
        return look_at_models(ResolveRequest(spec=wanted))

    return look


@pytest.mark.parametrize("engine", ["embedded", "vllm"])
def test_reinforcement_is_refused_with_what_can_be_done_instead(ask, engine):
    with pytest.raises(
        SpecError, match=rf"engine {engine} does not say.*dense model.*sft, dpo, kto"
    ):
        ask(GRPO, 4, engine)


@pytest.mark.parametrize(("train", "experts"), [(SFT, 4), (GRPO, 1)])
def test_rows_are_learned_from_and_a_dense_model_is_reinforced(ask, train, experts):
    assert ask(train, experts, None).num_parameters > 0
