"""``RUN@live`` moves on with its run and answers every request on the way; a step that is named stays what it is."""

from __future__ import annotations

import time
from pathlib import Path

import openai
import pytest
from serving_kit import START_SECONDS, serving
from warm import run_rollout

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SAMPLE = Path(__file__).parents[3] / "manifests" / "samples" / "arithmetic.yaml"
SMALL = ("train.algorithm.grpo.promptsPerStep=2", "train.algorithm.grpo.groupSize=2")
MESSAGES = [{"role": "user", "content": "3+4="}]


def train(home: Path, steps: int, *more: str) -> None:
    overrides = [f"--set={one}" for one in (*SMALL, f"train.maxSteps={steps}")]
    words = ("run", "-f", str(SAMPLE), *overrides, *more)
    done = run_rollout(*words, folder=home, environment={"ROLLOUT_HOME": str(home)})
    assert done.returncode == 0, done.stderr


def test_a_name_moves_on_with_its_run_and_no_request_fails(tmp_path):
    train(tmp_path, 2)
    with serving(tmp_path, "arithmetic@live", "fixed=arithmetic-1") as served:
        client = openai.OpenAI(base_url=served.url, api_key=served.key, max_retries=0)

        def ask(model: str) -> str:
            return client.chat.completions.create(
                model=model, messages=MESSAGES, max_tokens=4
            ).model

        assert served.models == ["arithmetic-1@2", "arithmetic-1", "arithmetic-1@live", "fixed"]
        assert ask("arithmetic-1@live") == ask("fixed") == "arithmetic-1@2"
        train(tmp_path, 4, "--resume", "Latest")
        deadline = time.monotonic() + START_SECONDS
        met = set()
        while (now := ask("arithmetic-1@live")) != "arithmetic-1@4":
            met.add(now)
            assert time.monotonic() < deadline, met
        assert met <= {"arithmetic-1@2", "arithmetic-1@3"}
        assert ask("fixed") == "arithmetic-1@2"
        answer = client.with_raw_response.chat.completions.create(
            model="arithmetic-1@live", messages=MESSAGES, max_tokens=2
        )
        assert answer.headers["X-Rollout-Weights-Digest"].startswith("blake3:")
