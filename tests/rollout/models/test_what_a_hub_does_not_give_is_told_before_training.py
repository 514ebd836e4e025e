"""``rollout run`` of a model that the hub does not give: told by cause and fix, by its exit code, and no run is left."""

import json

import pytest
from hub_kit import SHARDS, model_repo
from hub_server import open_hub
from warm import run_rollout

pytestmark = pytest.mark.process

SPEC = {
    "model": {"uri": "hf://acme/tiny"},
    "train": {
        "algorithm": {"grpo": {}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "maxSteps": 1,
    },
}


@pytest.mark.parametrize(
    ("wrong", "code", "says"),
    [
        ({"gate": 401}, 2, "is gated: accept its terms at http"),
        pytest.param({"revision": "v9"}, 2, "there are main, v1", marks=pytest.mark.slow),
        pytest.param({"store_gone": True}, 4, "did not give it", marks=pytest.mark.slow),
        pytest.param({"asks_to_wait": 7200}, 4, "asks to wait 7200 s", marks=pytest.mark.slow),
        pytest.param(
            {"spoilt": {SHARDS[0]: 9}}, 1, "nothing of them is kept", marks=pytest.mark.slow
        ),
    ],
)
def test_a_run_is_not_begun_without_its_model(tmp_path, wrong, code, says):
    revision = wrong.pop("revision", None)
    model = SPEC["model"] | ({"revision": revision} if revision else {})
    runs = tmp_path / "runs"
    kind = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun", "metadata": {"name": "hub"}}
    (tmp_path / "run.yaml").write_text(json.dumps({**kind, "spec": {**SPEC, "model": model}}))
    with open_hub({"acme/tiny": model_repo(1, **wrong)}) as hub:
        settings = {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "NO_PROXY": "*"}
        said = run_rollout(
            *("run", "-f", "run.yaml"),
            folder=tmp_path,
            environment={**settings, "HF_HOME": str(tmp_path / "home"), "ROLLOUT_HOME": str(runs)},
        )

    assert said.returncode == code, said.stderr
    assert "hf://acme/tiny" in said.stderr and says in said.stderr
    assert not runs.exists() or not list(runs.iterdir())
