import asyncio
import json
import textwrap
from pathlib import Path

import pytest

from rollout.data.build import build_source
from rollout.data.subset import find_overlap
from rollout.environments.arithmetic import Arithmetic, ArithmeticSource
from rollout.environments.build import build_environment
from rollout.errors import DataError, SpecError
from rollout.evaluations.build import build_suite
from rollout.evaluations.builtin.registry import BUILTINS
from rollout.rewards.pipeline import RewardPipeline
from rollout.types import Completion
from rollout_api.checks import catalog
from rollout_api.v1alpha1.evaluation import Evaluation
from rollout_api.v1alpha1.training.train import Train

GSM8K = Path(__file__).parents[3] / "manifests/samples/data/gsm8k"


def evaluation(suite, **fields):
    return Evaluation.model_validate({"suite": suite, **fields})


def builtin(name, **parameters):
    listed = [{"name": key, "value": value} for key, value in parameters.items()]
    return {"builtin": {"name": name, "parameters": listed}}


def train(**fields):
    return Train.model_validate(
        {"algorithm": {"grpo": {"promptsPerStep": 4, "groupSize": 4}}, **fields}
    )


def score(suite, text, row):
    completion = Completion(token_ids=(1,), logprobs=(0.0,), finish="stop", text=text)
    pipeline = RewardPipeline(suite.rewards)
    try:
        state = asyncio.run(suite.environment().build(row).start())
        return pipeline.score([state.messages], [completion], [row])[0][0]
    finally:
        pipeline.close()


def prompts(source):
    return {row["prompt"] for row in source.rows(range(len(source)))}


def test_the_registry_is_the_one_that_plans_check_against():
    assert set(BUILTINS) == catalog.SUITES


def test_selecting_and_reporting_ask_different_held_out_problems():
    selects = build_suite(evaluation(builtin("arithmetic"), selects=True)).source()
    reports = build_suite(evaluation(builtin("arithmetic"))).source()

    assert (len(selects), len(reports)) == (500, 2000)
    assert not prompts(selects) & prompts(reports)


def test_a_suite_takes_the_trainings_difficulty():
    trained = train(environment=builtin("arithmetic", digits="1", form="padded"))

    suite = build_suite(evaluation(builtin("arithmetic")), train=trained)
    own = build_suite(evaluation(builtin("arithmetic", digits="3")), train=trained)

    trained_on = build_environment(trained.environment).source("train", 0)
    assert len(suite.source()) == 20
    assert find_overlap(trained_on, suite.source()).num_rows == 0
    assert "000" in own.source().rows([0])[0]["answer"] or len(own.source()) == 2000


def test_an_arithmetic_answer_is_compared_exactly():
    suite = build_suite(evaluation(builtin("arithmetic")))
    row = suite.source().rows([0])[0]

    assert score(suite, row["answer"], row) == 1
    assert score(suite, row["answer"] + "0", row) == 0


def test_the_first_prompts_of_a_split_are_a_fair_sample():
    source = build_suite(evaluation(builtin("arithmetic"), maxPrompts=200)).source()

    second = [int(row["prompt"].rstrip("=").split("+")[1]) for row in source.rows(range(200))]

    assert len(source) == 200
    assert 35 < sum(second) / 200 < 65
    whole = ArithmeticSource(Arithmetic(), "report")
    assert source.rows([7]) == whole.rows([7])
    assert source.digest != whole.digest


def test_gsm8k_is_read_from_a_file_and_judged_as_mathematics():
    suite = build_suite(evaluation(builtin("gsm8k", uri="test.jsonl")), base_dir=GSM8K)
    source = suite.source()
    row = source.rows([0])[0]
    gold = row["answer"].rsplit("####", 1)[1].strip()

    assert 1000 < len(source) < 1100
    assert row["messages"][0]["role"] == "system"
    assert score(suite, f"so it is \\boxed{{{gold}}}", row) == 1
    assert score(suite, "so it is \\boxed{-12345}", row) == 0


def test_gsm8k_selects_on_other_problems_than_it_reports():
    suites = [
        build_suite(
            evaluation(builtin("gsm8k", uri="test.jsonl", systemPrompt=""), split=split),
            base_dir=GSM8K,
        )
        for split in ("Selection", "Report")
    ]

    selects, reports = (prompts(suite.source()) for suite in suites)

    assert len(selects) + len(reports) == 1319
    assert not selects & reports
    assert suites[0].source().rows([0])[0]["messages"][0]["role"] == "user"


def test_rows_of_ones_own_are_scored_as_in_training(tmp_path):
    (tmp_path / "eval.jsonl").write_text(json.dumps({"prompt": "p", "answer": "4"}))
    data = {"data": {"jsonl": {"uri": "eval.jsonl"}}}
    trained = train(rewards=[{"builtin": {"name": "exact-match"}}])

    suite = build_suite(evaluation(data), 3, train=trained, base_dir=tmp_path)
    own = build_suite(
        evaluation({**data, "rewards": [{"builtin": {"name": "length"}}]}), base_dir=tmp_path
    )

    row = suite.source().rows([0])[0]
    assert suite.name == "evaluation-3"
    assert (score(suite, "4", row), score(suite, "5", row)) == (1, 0)
    assert score(own, "5", row) == pytest.approx(1 - 1 / 256)
    with pytest.raises(SpecError, match=r"nothing says how answers are scored; add suite\.rewards"):
        build_suite(evaluation(data), base_dir=tmp_path)


def test_rows_held_out_of_the_training_data_are_its_other_parts(tmp_path):
    lines = [json.dumps({"prompt": f"p{i}", "answer": "x"}) for i in range(200)]
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    data = {"jsonl": {"uri": "all.jsonl"}, "evalFraction": "0.2"}
    trained = train(data=data, rewards=[{"builtin": {"name": "exact-match"}}])

    reports = build_suite(evaluation({"data": data}), train=trained, base_dir=tmp_path).source()
    selects = build_suite(
        evaluation({"data": data}, selects=True), train=trained, base_dir=tmp_path
    ).source()

    shown = prompts(build_source(trained.data, base_dir=tmp_path))
    assert not shown & prompts(reports)
    assert not prompts(reports) & prompts(selects)
    assert len(shown) + len(reports) + len(selects) == 200


def test_a_users_suite_has_rows_and_a_score(tmp_path):
    (tmp_path / "my_suite.py").write_text(
        textwrap.dedent("""
            class Colours:
                def __init__(self, colour="red"):
                    self.colour = colour

                def rows(self, split):
                    return [{"prompt": f"{split}?", "answer": self.colour}]

                def score(self, prompts, completions, rows):
                    return [float(c.text == self.colour) for c in completions]
        """)
    )
    python = {"module": "my_suite", "className": "Colours"}
    python["parameters"] = [{"name": "colour", "value": "blue"}]

    suite = build_suite(evaluation({"python": python}, name="colours"), folders=[tmp_path])
    row = suite.source().rows([0])[0]

    assert row["prompt"] == "report?"
    assert (score(suite, "blue", row), score(suite, "red", row)) == (1, 0)


def test_a_users_suite_that_cannot_be_built_says_its_line(tmp_path):
    (tmp_path / "my_locked_suite.py").write_text(
        "class Locked:\n    def __init__(self):\n        raise KeyError('SUITE_KEY')\n"
    )
    python = {"module": "my_locked_suite", "className": "Locked"}
    suite = build_suite(evaluation({"python": python}, name="locked"), folders=[tmp_path])

    said = r"Locked: cannot be built: KeyError: 'SUITE_KEY' \(my_locked_suite.py:3\)"
    with pytest.raises(SpecError, match=said):
        suite.source()


@pytest.mark.parametrize(
    ("suite", "says"),
    [
        (builtin("mmul"), "no suite 'mmul'; there are arithmetic, gsm8k, gsm8k-5shot"),
        (builtin("gsm8k", url="x"), "unknown parameter 'url'; it takes uri"),
        (builtin("gsm8k", selectionShare="1"), "selectionShare: expected a share above 0"),
        (builtin("arithmetic", digits="9"), "digits: expected 1..4"),
    ],
)
def test_a_suite_that_cannot_be_built_is_refused(suite, says):
    with pytest.raises(SpecError, match=says):
        build_suite(evaluation(suite))


@pytest.mark.parametrize(
    "environment",
    [
        {**builtin("arithmetic"), "tools": ["not_there.calculator"]},
        {"python": {"module": "not_there", "className": "Talk"}},
    ],
)
@pytest.mark.parametrize("suite", [builtin("arithmetic"), {"data": {"jsonl": {"uri": "x.jsonl"}}}])
def test_a_suite_imports_no_code_of_the_user_before_it_is_played(environment, suite):
    trained = train(environment=environment, rewards=[{"builtin": {"name": "environment"}}])

    built = build_suite(evaluation(suite), train=trained)

    assert built.name
    if environment.get("tools") or "data" in suite:
        with pytest.raises(SpecError, match="not_there"):
            built.environment()


DOUBLE = {
    "task_id": "Ours/0",
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


@pytest.mark.process
@pytest.mark.parametrize(
    ("style", "reply", "shown"),
    [
        ("instruct", "```python\ndef double(x):\n    return 2 * x\n```", "in one block of code"),
        ("complete", "    return 2 * x", DOUBLE["prompt"]),
    ],
)
def test_humaneval_runs_what_is_replied(style, reply, shown, tmp_path, sandbox_host):
    (tmp_path / "ours.jsonl").write_text(json.dumps(DOUBLE))
    asked = builtin("humaneval", uri=str(tmp_path / "ours.jsonl"), style=style)
    suite = build_suite(evaluation(asked))
    (row,) = suite.source().rows([0])

    assert shown in row["prompt"] and DOUBLE["prompt"] in row["prompt"]
    assert score(suite, reply, row) == 1.0
    assert score(suite, "def double(x):\n    return x", row) == 0.0


def test_humaneval_names_what_a_row_lacks(tmp_path):
    (tmp_path / "ours.jsonl").write_text(json.dumps({"prompt": "def f():"}))
    suite = build_suite(evaluation(builtin("humaneval", uri=str(tmp_path / "ours.jsonl"))))

    with pytest.raises(DataError, match="suite humaneval: expected prompt, test and entry_point"):
        suite.source()
