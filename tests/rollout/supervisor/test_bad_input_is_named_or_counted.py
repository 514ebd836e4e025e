"""Bad input on the real path, from the command line: an error that names it, or an exclusion that is recorded.

What is told before anything is started exits with 2 and leaves no run behind; what only the run itself
can meet exits with 1. Nothing ever becomes a score of 0.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import save_file
from warm import run_rollout

from rollout.models.resolve import resolve_model

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

ADDER = "rollout://tiny-adder?steps=0"
PAIRS = [{"prompt": f"1{n}+11=", "chosen": f"0{21 + n}", "rejected": "111"} for n in range(8)]
LABELS = [
    {"prompt": row["prompt"], "answer": "021", "label": bool(n % 2)} for n, row in enumerate(PAIRS)
]
SUMS = [{"prompt": row["prompt"], "answer": row["chosen"]} for row in PAIRS]
SINGLE_TURN = {"environment": {"builtin": {"name": "single-turn"}}}
EXACT = {"builtin": {"name": "exact-match"}}


def later(*cases: Any) -> list[Any]:
    """Cases for the long tier: the same path by another name."""
    pairs = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*one, marks=pytest.mark.slow) for one in pairs]


class Place:
    """A folder with one manifest, and what ``rollout`` says to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"

    def write(self, algorithm: dict[str, Any], model: str = ADDER, **train: Any) -> None:
        sampled = {} if "data" in train else {"environment": {"builtin": {"name": "arithmetic"}}}
        spec = {
            "model": {"uri": model},
            "train": {"algorithm": algorithm, "maxSteps": 2, **sampled, **train},
        }
        kind = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
        manifest = {**kind, "metadata": {"name": "bad"}, "spec": spec}
        (self.folder / "bad.yaml").write_text(json.dumps(manifest))

    def data(self, rows: Sequence[Any], **more: Any) -> dict[str, Any]:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (self.folder / "rows.jsonl").write_text(lines)
        return {"jsonl": {"uri": "rows.jsonl"}, **more}

    def run(self, command: str = "run") -> tuple[int, str]:
        """The exit code, and all that was said."""
        home = {"ROLLOUT_HOME": str(self.runs)}
        done = run_rollout(command, "-f", "bad.yaml", folder=self.folder, environment=home)
        said = done.stdout + done.stderr
        assert "Traceback" not in said
        return done.returncode, said

    def refused(self, *words: str) -> None:
        """Expect an error before the start that has all ``words``."""
        code, said = self.run()
        assert code == 2, said
        assert all(word in said for word in words), said
        assert not self.runs.exists() or not list(self.runs.iterdir())

    def failed(self, *words: str) -> None:
        """Expect a run that fails and has all ``words`` in what it says."""
        code, said = self.run()
        assert code == 1, said
        assert all(word in said for word in words), said

    def succeeded(self) -> list[dict[str, Any]]:
        """The metrics of a run that ends well."""
        code, said = self.run()
        assert code == 0, said
        lines = (self.runs / "bad-1" / "metrics.jsonl").read_text().splitlines()
        return [one for one in map(json.loads, lines) if "loss" in one]

    def planned_bad(self) -> int:
        """How many records a plan says are left out."""
        found = re.search(r"numBadRecords\W+(\d+)", self.run("plan")[1])
        return int(found[1]) if found else 0

    def recorded_bad(self) -> int:
        """How many records the run wrote down as left out."""
        worker = json.loads((self.runs / "bad-1" / "worker.json").read_text())
        return worker["resolved"]["badRecords"]


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def adder(tmp_path) -> Path:
    """A copy of the tiny model's folder, to be damaged."""
    return Path(shutil.copytree(resolve_model(ADDER).path, tmp_path / "model"))


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("algorithm", ["dpo", *later("rm", "ipo", "orpo", "simpo")])
def test_equal_answers_are_named(place, algorithm) -> None:
    rows = [*PAIRS, {"prompt": "1+1=", "chosen": "2", "rejected": "2"}]
    place.write({algorithm: {"batchSize": 4, "maxLength": 64}}, data=place.data(rows))
    place.refused("rows.jsonl:9", "'chosen' and 'rejected' hold equal answers")


@pytest.mark.parametrize(
    ("algorithm", "rows", "bad", "field"),
    [
        ("dpo", PAIRS, {"chosen": ""}, "chosen"),
        ("rm", PAIRS, {"rejected": "  "}, "rejected"),
        ("kto", LABELS, {"answer": ""}, "answer"),
        ("sft", SUMS, {"answer": ""}, "answer"),
    ],
)
def test_empty_completions_are_named(place, algorithm, rows, bad, field) -> None:
    data = place.data([*rows, {**rows[0], **bad}])
    place.write({algorithm: {"batchSize": 4, "maxLength": 64}}, data=data)
    place.refused("rows.jsonl:9", f"field '{field}' is empty")


def test_bad_rows_may_be_left_out_and_are_counted(place) -> None:
    equal = {"prompt": "1+1=", "chosen": "2", "rejected": "2"}
    data = place.data([*PAIRS, equal, {**PAIRS[0], "chosen": ""}], onBadRecord="Skip")
    place.write({"dpo": {"batchSize": 4, "maxLength": 64}}, data=data)
    assert place.planned_bad() == 2
    metrics = place.succeeded()
    assert place.recorded_bad() == 2
    assert [one["num_sequences"] for one in metrics] == [4, 4]


@pytest.mark.parametrize(
    ("algorithm", "rows"), [("dpo", PAIRS), *later(("kto", LABELS), ("rm", PAIRS))]
)
def test_answers_over_the_length_are_filtered_and_counted(place, algorithm, rows) -> None:
    answer = "chosen" if "chosen" in rows[0] else "answer"
    long = [{**rows[0], answer: "7" * 100}, {**rows[1], answer: "8" * 100}]
    data = place.data([*rows[2:], *long], shuffle=False)
    place.write({algorithm: {"batchSize": 8, "maxLength": 64}}, data=data, maxSteps=1)
    (metrics,) = place.succeeded()
    assert metrics["num_too_long"] == 2


def test_rows_that_are_cut_at_their_end_are_counted(place) -> None:
    long = [{"prompt": "1+1=", "answer": "7" * 100}, {"prompt": "8" * 100 + "=", "answer": "1"}]
    data = place.data([*SUMS[2:], *long], shuffle=False)
    place.write({"sft": {"batchSize": 8, "maxLength": 64}}, data=data, maxSteps=1)
    (metrics,) = place.succeeded()
    assert (metrics["num_cut"], metrics["num_without_target"]) == (2, 1)


UNKNOWN = [*SUMS, {"prompt": "2+2?", "answer": "4"}]


def test_text_that_the_model_has_no_tokens_for_is_named_with_its_row(place) -> None:
    online = {"rewards": [EXACT], "sampling": {"maxNewTokens": 4}}
    place.write({"grpo": {}}, data=place.data(UNKNOWN), **SINGLE_TURN, **online)
    place.refused("row 8", "'train'", "2+2?", "take a model that knows such text")


def test_a_look_at_the_data_that_dies_says_its_last_words_and_no_credential(place) -> None:
    (place.folder / "mine.py").write_text(
        "import os\nprint('the end of https://me:hidden@host/x', flush=True)\nos._exit(3)\n"
        "class Env:\n    def build(self, row): ...\n"
    )
    environment = {"python": {"module": "mine", "className": "Env"}}
    online = {"rewards": [EXACT], "sampling": {"maxNewTokens": 4}}
    place.write({"grpo": {}}, data=place.data(SUMS), environment=environment, **online)
    edit_json(place.folder / "bad.yaml", lambda one: one["spec"].update(code={"path": "."}))
    code, said = place.run("plan")
    assert code == 1 and "exit code 3" in said and "the end of https://" in said, said
    assert "hidden" not in said


def test_prompts_over_the_context_are_named(place) -> None:
    rows = [*SUMS, {"prompt": "1" * 600 + "=", "answer": "1"}]
    data = place.data(rows)
    grpo = {"grpo": {"promptsPerStep": 4, "groupSize": 2}}
    place.write(grpo, data=data, rewards=[EXACT], sampling={"maxNewTokens": 4}, **SINGLE_TURN)
    place.refused("601 tokens", "context")


def test_prompts_over_the_context_may_be_left_out_and_are_counted(place) -> None:
    data = place.data([*SUMS, {"prompt": "1" * 600 + "=", "answer": "1"}], onBadRecord="Skip")
    grpo = {"grpo": {"promptsPerStep": 4, "groupSize": 2}}
    sampling = {"maxNewTokens": 4}
    place.write(
        grpo, data=data, rewards=[EXACT], maxPromptTokens=16, sampling=sampling, **SINGLE_TURN
    )
    assert [one["num_groups"] for one in place.succeeded()] == [4, 4]
    assert place.recorded_bad() == 1


def test_prompts_over_the_length_are_named_where_none_may_be_left_out(place) -> None:
    data = place.data([*SUMS, {"prompt": "1" * 20 + "=", "answer": "1"}])
    grpo = {"grpo": {"promptsPerStep": 4, "groupSize": 2}}
    place.write(grpo, data=data, rewards=[EXACT], maxPromptTokens=16, **SINGLE_TURN)
    place.refused("has 21 tokens, at most 16", "onBadRecord: Skip")


REWARDS = """
import time

def raises(prompts, completions, rows):
    raise KeyError("no such column")

def nan(prompts, completions, rows):
    return [float("nan")] * len(completions)

def hangs(prompts, completions, rows):
    time.sleep(3600)
"""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "no such column"),
        ("nan", "expected a finite number"),
        *later(("hangs", "did not answer within 1 s")),
    ],
)
@pytest.mark.parametrize("algorithm", ["grpo", *later("ppo")])
def test_a_reward_that_gives_no_number_stops_the_run(place, algorithm, function, said) -> None:
    """Quick of one that hangs: rewards/test_a_bad_reward_function_is_named.py, which ends as the others do here."""
    (place.folder / "mine.py").write_text(REWARDS)
    reward = {"python": {"path": "mine.py", "function": function}, "timeoutSeconds": 1}
    place.write({algorithm: {"promptsPerStep": 4}}, rewards=[reward])
    place.failed(function, said)


def test_a_tokenizer_with_no_end_token_is_named(place, adder) -> None:
    edit_json(
        adder / "tokenizer_config.json", lambda c: [c.pop("eos_token", 0), c.pop("pad_token", 0)]
    )
    place.write({"sft": {"batchSize": 4, "maxLength": 64}}, adder.as_uri(), data=place.data(SUMS))
    place.refused(str(adder), "end token")


def test_a_tokenizer_with_no_pad_token_pads_with_its_end_token(place, adder) -> None:
    edit_json(adder / "tokenizer_config.json", lambda config: config.pop("pad_token", 0))
    place.write({"rm": {"batchSize": 4, "maxLength": 64}}, adder.as_uri(), data=place.data(PAIRS))
    assert [one["num_sequences"] for one in place.succeeded()] == [4, 4]


@pytest.fixture
def headless(adder) -> str:
    """A reward model's folder whose weights have lost their head."""
    change = {"architectures": ["Qwen2ForSequenceClassification"], "num_labels": 1}
    edit_json(adder / "config.json", lambda config: config.update(change))
    with safe_open(adder / "model.safetensors", framework="pt") as file:
        kept = {name: file.get_tensor(name) for name in file.keys() if name != "score.weight"}  # noqa: SIM118 - no mapping: it has keys() only
    save_file(kept, adder / "model.safetensors", metadata={"format": "pt"})
    return adder.as_uri()


def test_a_reward_model_without_its_head_is_named(place, headless) -> None:
    place.write(
        {"grpo": {"promptsPerStep": 4, "groupSize": 2}}, rewards=[{"model": {"uri": headless}}]
    )
    place.refused("score.weight")


def test_a_critic_without_its_head_is_named(place, headless) -> None:
    ppo = {"promptsPerStep": 4, "critic": {"model": {"uri": headless}}}
    place.write({"ppo": ppo}, rewards=[EXACT])
    place.refused("score.weight")


def test_an_evaluation_on_what_is_trained_on_is_named(place) -> None:
    data = place.data(SUMS)
    suite = {"data": data, "rewards": [EXACT]}
    place.write({"sft": {"batchSize": 4, "maxLength": 64}}, data=data)
    path = place.folder / "bad.yaml"
    manifest = json.loads(path.read_text())
    evaluation = {"name": "memory", "suite": suite, "maxNewTokens": 4}
    manifest["spec"]["evaluations"] = [evaluation]
    path.write_text(json.dumps(manifest))
    place.refused("8 of 8 prompts of 'memory' are in the training data")
