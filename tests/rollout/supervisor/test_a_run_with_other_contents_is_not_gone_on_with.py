"""A resumed run whose models or data hold something else is refused, by field and by both digests."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rollout.errors import SpecError
from rollout.runs.manifest import Document
from rollout.runs.prepare import prepare_run
from rollout.runs.resolve import Resolution
from rollout.runs.run_dir import RunDir
from rollout.supervisor.launch import Launch, build_config
from rollout.supervisor.processes import Machine

GRPO = {
    "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2, "klCoefficient": "0.1"}},
    "environment": {"builtin": {"name": "arithmetic"}},
    "rewards": [{"model": {"uri": "file:///judge"}, "name": "judge"}],
    "reference": {"uri": "file:///reference"},
    "maxSteps": 2,
}
PPO = {
    "algorithm": {"ppo": {"promptsPerStep": 2, "critic": {"model": {"uri": "file:///critic"}}}},
    "environment": {"builtin": {"name": "arithmetic"}},
    "rewards": [{"builtin": {"name": "exact-match"}}],
    "maxSteps": 2,
}
DISTILL = {
    "algorithm": {"distill": {"promptsPerStep": 2, "teacher": {"uri": "file:///teacher"}}},
    "environment": {"builtin": {"name": "arithmetic"}},
    "maxSteps": 2,
}
CASES = {
    "reference": (GRPO, "spec.train.reference"),
    "reward/judge": (GRPO, "spec.train.rewards[0].model"),
    "critic": (PPO, "spec.train.algorithm.ppo.critic.model"),
    "teacher": (DISTILL, "spec.train.algorithm.distill.teacher"),
    "model": (GRPO, "spec.model"),
    "train": (GRPO, "spec.train.data"),
}


def digest(letter: str) -> str:
    return f"blake3:{letter * 64}"


def begun(train: dict, tmp_path: Path) -> Launch:
    spec = {"model": {"uri": "file:///policy"}, "train": train}
    data = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "run"},
        "spec": spec,
    }
    prepared = prepare_run(Document(source="run.yaml", data=data, lines={}))
    return Launch(prepared=prepared, run=RunDir(path=tmp_path))


def looked(roles: tuple[str, ...], changed: str | None = None) -> Resolution:
    further = {role: digest("b" if role == changed else "a") for role in roles}
    return Resolution(
        model_path="/policy",
        model_digest=digest("b" if changed == "model" else "a"),
        model_revision=None,
        num_parameters=10,
        context_length=64,
        stop_token_ids=(1,),
        prompt_tokens_max=8,
        data_digests={"train": digest("b" if changed == "train" else "a")},
        models={role: f"/{role}" for role in roles},
        model_digests=further,
    )


@pytest.mark.parametrize("role", CASES)
def test_what_changed_is_named_with_both_digests(role, tmp_path) -> None:
    train, field = CASES[role]
    roles = ("reference", "reward/judge") if train is GRPO else (role,)
    launch = begun(train, tmp_path)
    first = build_config(launch, looked(roles), Machine(cpus=1), "http://127.0.0.1:1")
    assert first.resolved.model_digests == dict.fromkeys(roles, digest("a"))
    again = Launch(prepared=launch.prepared, run=launch.run, previous=first)
    second = build_config(again, looked(roles), Machine(cpus=1), "http://127.0.0.1:1")
    assert second == first.model_copy(update={"attempt": second.attempt})
    assert second.attempt > first.attempt

    with pytest.raises(SpecError, match="take the change back, or start a new run") as told:
        build_config(again, looked(roles, role), Machine(cpus=1), "http://127.0.0.1:1")

    assert f"the content of {field} (was {digest('a')}, is {digest('b')})" in str(told.value)
    assert str(told.value).count(" (was ") == 1


def test_a_configuration_of_before_is_read_and_still_refused(tmp_path) -> None:
    launch = begun(GRPO, tmp_path)
    roles = ("reference", "reward/judge")
    first = build_config(launch, looked(roles), Machine(cpus=1), "http://127.0.0.1:1")
    old = first.resolved.model_copy(update={"model_digests": {}})
    again = Launch(
        prepared=launch.prepared,
        run=launch.run,
        previous=first.model_copy(update={"resolved": old}),
    )
    with pytest.raises(SpecError, match="cannot be gone on with"):
        build_config(again, looked(roles, "reference"), Machine(cpus=1), "http://127.0.0.1:1")


def test_the_resolver_says_revisions_of_further_models() -> None:
    found = looked(("reference",))
    sent = msgspec.structs.replace(found, model_revisions={"reference": "abc"})
    assert msgspec.json.decode(msgspec.json.encode(sent), type=Resolution) == sent
