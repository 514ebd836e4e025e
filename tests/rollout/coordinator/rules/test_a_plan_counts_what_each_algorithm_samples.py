"""From the manifest to the coordinator's numbers: prompts, samples, and what its rewards are compared with."""

from pathlib import Path

import pytest

from rollout.coordinator.build import build_plan
from rollout.coordinator.rows import build_rows
from rollout_api.worker import WorkerConfig

DIGEST = "blake3:" + "0" * 64


def plan(algorithm, layout=None, **spec):
    here = str(Path.cwd())
    config = WorkerConfig.model_validate(
        {
            "run": {"name": "r", "uid": "u"},
            "specDigest": DIGEST,
            "spec": {
                "model": {"uri": "rollout://tiny-adder"},
                "train": {
                    "algorithm": algorithm,
                    "environment": {"builtin": {"name": "arithmetic"}},
                    "rewards": [{"builtin": {"name": "exact-match"}}],
                    "maxSteps": 3,
                    "sampling": {
                        "minNewTokens": 2,
                        "stop": ["</answer>", "\n\n"],
                        "stopTokenIds": [5, 2],
                        "includeStopText": True,
                    },
                },
                **spec,
            },
            "resolved": {
                "modelPath": here,
                "modelDigest": DIGEST,
                "dtype": "Float32",
                "stopTokenIds": [2],
                "promptTokensMax": 16,
            },
            "layout": {
                "runDir": here,
                "coordinatorUrl": "http://127.0.0.1:1",
                "tokenFile": here,
                "objectsDir": here,
                "ledgerPath": here,
                **(layout or {}),
            },
        }
    )
    return build_plan(config, build_rows(config))


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"grpo": {"promptsPerStep": 5, "groupSize": 3}}, (5, 3, False)),
        (
            {"grpo": {"groupSize": 1, "advantageBaseline": "None", "advantageScale": "Whiten"}},
            (32, 1, True),
        ),
        ({"ppo": {"promptsPerStep": 5}}, (5, 1, True)),
        ({"ppo": {"promptsPerStep": 5, "samplesPerPrompt": 4}}, (5, 4, True)),
        ({"distill": {"teacher": {"uri": "rollout://tiny-adder"}}}, (32, 4, False)),
    ],
)
def test_a_step_takes_as_many_samples_as_the_manifest_says(algorithm, expected):
    found = plan(algorithm).train
    assert (found.tasks_per_step, found.num_samples, found.pools_rewards) == expected
    assert not found.offline


def test_only_a_teacher_teaches_without_reward():
    assert not plan(
        {"distill": {"teacher": {"uri": "rollout://tiny-adder"}}}
    ).train.learns_from_reward
    assert plan({"grpo": {}}).train.learns_from_reward


def test_training_and_evaluations_end_completions_alike():
    found = plan({"grpo": {}}, evaluations=[{"suite": {"builtin": {"name": "arithmetic"}}}])

    [evaluation] = found.evaluations
    for sampling in (found.train.sampling, evaluation.sampling):
        assert sampling.stop == ("</answer>", "\n\n")
        assert sampling.stop_token_ids == (2, 5)
        assert sampling.include_stop
    assert (found.train.sampling.min_new_tokens, evaluation.sampling.min_new_tokens) == (2, 0)


PLACE = "s3://runs/team/ns/uid-1"


@pytest.mark.parametrize(
    ("place", "spec", "told"),
    [
        (PLACE, {}, PLACE),
        ("gs://runs/team/ns/uid-1", {}, "gs://runs/team/ns/uid-1"),
        ("pvc://ledger-uid-1-r-coordinator-0/objects", {}, ""),
        (None, {}, ""),
        (PLACE, {"model": {"uri": "rollout://tiny-adder", "lora": {"rank": 4}}}, ""),
    ],
)
def test_servers_are_told_of_weights_that_a_bucket_has_whole(place, spec, told):
    layout = {} if place is None else {"objectsUri": place}
    assert plan({"grpo": {}}, layout, **spec).snapshots.weights_place == told
