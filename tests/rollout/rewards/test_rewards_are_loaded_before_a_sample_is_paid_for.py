"""A reward that cannot be loaded ends a plan, and an actor before its engine is asked for anything."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from rollout.errors import RewardError, SpecError
from rollout.models.resolve import resolve_model
from rollout.rewards.source import RewardSource, load_reward
from rollout.rewards.trial import load_once, without_credentials
from rollout.runs.manifest import load_documents
from rollout.runs.plan import build_plan
from rollout_api import parse_run
from rollout_api.worker import WorkerConfig

DIGEST = "blake3:" + "0" * 64
GOOD = "def judge(prompts, completions, rows):\n    return [0.0] * len(rows)\n"


def manifest(**python):
    train = {
        "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"python": {"function": "judge", **python}}],
        "sampling": {"maxNewTokens": 4},
        "maxSteps": 1,
    }
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "a"},
        "spec": {
            "model": {"uri": "rollout://tiny-qwen2?hidden=32&layers=1&heads=2"},
            "train": train,
        },
    }


@pytest.fixture
def judge(tmp_path):
    def written(text):
        (tmp_path / "judges.py").write_text(text)
        return RewardSource(name="judge", path="judges.py", function="judge", folders=(tmp_path,))

    return written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("judge = 3\n", "judge in judges.py: expected a function, got int"),
        ("def judge(one): ...\n", "judge is called with .* too many positional arguments"),
        (
            "def judge(prompts, completions, rows, k): ...\n",
            "judge is called with .* missing a required argument: 'k'",
        ),
        (
            "class judge:\n    def score(self, completions): ...\n",
            "judge is called with .* too many positional arguments",
        ),
    ],
)
def test_a_function_that_no_batch_can_be_given_to_is_refused_when_it_is_loaded(
    judge, text, message
):
    with pytest.raises(SpecError, match=message):
        load_reward(judge(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit('set JUDGE_KEY')\n", r"SystemExit: set JUDGE_KEY \(judges.py:2\)"),
        ("def __getattr__(name): raise KeyError(name)\n", r"'judge': KeyError: .* \(judges.py:1\)"),
        (
            "class judge:\n    def __init__(self):\n        raise KeyError('JUDGE_KEY')\n",
            r"judge in judges.py: cannot be built: KeyError: 'JUDGE_KEY' \(judges.py:3\)",
        ),
        (
            "class judge:\n    def __init__(self, k): ...\n",
            r"judge in judges.py: cannot be built: TypeError: .* missing .* 'k'",
        ),
        (
            "class judge:\n    def __init__(self):\n        raise SystemExit(3)\n",
            r"SystemExit: 3 \(judges.py:3\)",
        ),
        (
            "class judge:\n    @property\n    def score(self):\n        raise OSError('gone')\n",
            r"OSError: gone \(judges.py:4\)",
        ),
    ],
)
def test_whatever_the_authors_code_raises_while_it_is_loaded_is_a_bad_spec_with_its_line(
    judge, text, message
):
    with pytest.raises(SpecError, match=message):
        load_reward(judge(text))


def test_a_function_that_says_nothing_of_how_it_is_called_is_let_pass(judge):
    assert load_reward(judge("judge = max\n")) is max


def test_variables_are_ours_without_credentials_that_the_manifest_does_not_give():
    document = manifest(path="judges.py")
    secret = {"secretKeyRef": {"name": "s", "key": "k"}}
    document["spec"]["env"] = [
        {"name": "JUDGE_KEY", "valueFrom": secret},
        {"name": "LEARNER_KEY", "valueFrom": secret, "roles": ["Learner"]},
        {"name": "WORD", "value": "hello"},
    ]
    ours = {"PATH": "/bin", "HF_TOKEN": "ours", "JUDGE_KEY": "theirs", "LEDGER_DSN": "ours"}
    ours["LEARNER_KEY"] = "theirs"
    found = without_credentials(ours, parse_run(document).spec)
    assert found == {"PATH": "/bin", "JUDGE_KEY": "theirs", "WORD": "hello"}


@pytest.mark.process
def test_a_plan_imports_the_users_file_and_says_where_it_broke(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LEDGER_PASSWORD", "hidden")
    (tmp_path / "judges.py").write_text(
        "import os\nassert not (found := os.environ.get('LEDGER_PASSWORD')), found\nimport nothing_here\n"
        + GOOD
    )
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(manifest(path="judges.py")))
    with pytest.raises(SpecError, match=r"No module named 'nothing_here' \(judges.py:3\)"):
        build_plan(load_documents(file), offline=True)


@pytest.mark.process
def test_an_import_that_hangs_ends_with_its_deadline(judge):
    hangs = judge("import threading\nthreading.Event().wait()\n" + GOOD)
    late = patch("rollout.rewards.host.START_SECONDS_MAX", 1.0)
    with late, pytest.raises((SpecError, RewardError), match="was not loaded within 1 s"):
        load_once([hangs], os.environ)


@pytest.mark.process
def test_an_actor_ends_as_a_bad_spec_before_its_engine_is_asked_for_anything(tmp_path):
    (tmp_path / "judges.py").write_text("def other(prompts, completions, rows): ...\n")
    config = actor_config(tmp_path)
    (tmp_path / "worker.json").write_text(config.model_dump_json(exclude_none=True))
    (tmp_path / "token").write_text("secret")
    engine = tmp_path / "engine"
    engine.mkdir()

    done = subprocess.run(
        [
            *(sys.executable, "-m", "rollout.entrypoints.actor", "--index", "0"),
            *("--config", str(tmp_path / "worker.json")),
        ],
        env={**os.environ, "ROLLOUT_ENGINE_DIR": str(engine)},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 2, done.stderr
    assert "has no 'judge'; it has other" in done.stderr
    assert list(engine.iterdir()) == []


def actor_config(folder: Path) -> WorkerConfig:
    spec = manifest(path="judges.py")["spec"]
    model = resolve_model(spec["model"]["uri"], cache_dir=folder / "models").path
    resolved = {
        "modelPath": str(model),
        "modelDigest": DIGEST,
        "dtype": "Float32",
        "promptTokensMax": 16,
        "engine": "vllm",
    }
    layout = {
        "runDir": str(folder),
        "coordinatorUrl": "http://127.0.0.1:1",
        "tokenFile": str(folder / "token"),
        "objectsDir": str(folder / "objects"),
        "ledgerPath": str(folder / "ledger.db"),
    }
    return WorkerConfig.model_validate(
        {
            "run": {"name": "r", "uid": "u"},
            "specDigest": DIGEST,
            "spec": {
                **spec,
                "code": {"path": str(folder)},
                "actors": {"engine": {"vllm": {}}},
                "numerics": {"mode": "Fast"},
            },
            "resolved": resolved,
            "layout": layout,
        }
    )
