"""A run that only evaluates measures each prompt once, as a training run does before its first step, whatever dies."""

from __future__ import annotations

import json
import signal

import psutil
import pytest
from local_jobs import members, start_job
from typer.testing import CliRunner
from warm import run_rollout

from rollout.cli.main import app
from rollout.errors import SpecError
from rollout.report.gather import open_ledger

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

EVALUATION = (
    "{name: sums, suite: {builtin: {name: arithmetic}}, maxPrompts: 120, samplesPerPrompt: 2,"
    ' temperature: "1.0", maxNewTokens: 8'
)
HEAD = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: measured}
spec:
  seed: 11
  model: {uri: "rollout://tiny-qwen2?hidden=64&layers=1&heads=2&kv_heads=1&intermediate=64&context=64"}
"""
ALONE = f"{HEAD}  evaluate: {{}}\n  evaluations: [{EVALUATION}}}]\n"
BESIDE = f"""{HEAD}
  train:
    algorithm: {{grpo: {{promptsPerStep: 2, groupSize: 2}}}}
    environment: {{builtin: {{name: arithmetic}}}}
    rewards: [{{builtin: {{name: exact-match}}}}]
    sampling: {{maxNewTokens: 8}}
    optimizer: {{adamw: {{learningRate: "1e-3"}}}}
    maxSteps: 1
  evaluations: [{EVALUATION}, atStart: true, atEnd: false}}]
"""
OWN = f"""{HEAD}
  evaluate: {{}}
  code: {{path: "."}}
  evaluations: [{{name: own, suite: {{python: {{module: own_suite, className: Own}}}}, maxNewTokens: 4}}]
"""
OWN_SUITE = """
class Own:
    def rows(self, split):
        return [{"prompt": str(n), "answer": str(n)} for n in range(6)]

    def score(self, prompts, completions, rows):
        return [1.0 if int(row["answer"]) % 2 else 0.0 for row in rows]
"""
LEASE_SECONDS = 4.0


def start(folder, manifest=ALONE, **options):
    folder.mkdir(parents=True, exist_ok=True)
    return start_job(folder / "runs", manifest=manifest, lease_seconds=LEASE_SECONDS, **options)


def answers_of(job) -> list[str]:
    """Ids of all trajectories in order: tokens, logprobs, texts and rewards are what they are made of."""
    with open_ledger(job.run_dir) as ledger:
        return [one.trajectory_id for one in ledger.evaluation_samples("sums", "report", 0)]


def tokens_of(job):
    with open_ledger(job.run_dir) as ledger:
        samples = ledger.evaluation_samples("sums", "report", 0)
        return [
            (one.trajectory.prompt_ids, one.trajectory.token_ids, one.reward) for one in samples
        ]


def summary_of(job):
    with open_ledger(job.run_dir) as ledger:
        (view,) = ledger.evaluations()
        return view.summary


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run that nobody disturbed."""
    job = start(tmp_path_factory.mktemp("untouched"))
    job.finish()
    return job


@pytest.fixture(scope="module")
def untouched(measured):
    return answers_of(measured)


def test_each_prompt_is_asked_as_often_as_wanted_and_no_step_is_made(measured, untouched):
    result = measured.result()
    summary = summary_of(measured)

    assert len(untouched) == len(set(untouched)) == 240
    assert summary["num_prompts"] == 120
    assert {"accuracy", "pass@1", "pass@2"} <= summary.keys()
    assert result["step"] == 0
    assert result["message"] == "120 prompts of 1 evaluation measured"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that measures the same model and then trains it."""
    job = start(tmp_path_factory.mktemp("trained"), BESIDE)
    job.finish()
    return job


def test_a_training_run_measures_the_same_before_its_first_step(measured, trained):
    """Its engine plans with other lengths, so that a logprob may differ in its last bit."""
    assert tokens_of(trained) == tokens_of(measured)
    assert summary_of(trained) == summary_of(measured)


@pytest.mark.parametrize(
    ("role", "number"),
    [
        ("model", 0),
        pytest.param("actor-0", 0, marks=pytest.mark.slow),
        ("actor-0", 20),
        pytest.param("coordinator", 0, marks=pytest.mark.slow),
        ("coordinator", 20),
    ],
)
def test_a_process_that_is_killed_changes_no_answer(role, number, measured, untouched, tmp_path):
    """Quick: each role once, the two that work on when there is most to lose."""
    job = start(tmp_path)
    job.wait_until(
        lambda status: role == "model" or sum(one.num_done for one in status.evaluations) >= number
    )

    kill_any(job, role)

    job.finish()
    assert answers_of(job) == untouched
    assert summary_of(job) == summary_of(measured)


def kill_any(job, name: str) -> None:
    """Kill a process by its name; one that has gone by itself by now was not needed any more."""
    for process in members(job.run_dir):
        try:
            if f"rollout.entrypoints.{name.partition('-')[0]}" in process.cmdline():
                process.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue


def test_a_run_that_is_killed_whole_goes_on_and_asks_what_it_began_with(untouched, tmp_path):
    job = start(tmp_path)
    job.wait_until(lambda status: any(one.num_done for one in status.evaluations))
    job.process.kill()
    psutil.wait_procs(members(job.run_dir), timeout=60)

    other = start(tmp_path, ALONE.replace("maxPrompts: 120", "maxPrompts: 60"), resume="Latest")
    assert other.wait() == 2
    assert "spec.evaluations" in other.said()
    resumed = start(tmp_path, resume="Latest")
    resumed.finish()

    assert answers_of(resumed) == untouched


def test_the_weights_of_a_run_are_measured_by_its_name(trained, tmp_path):
    words = ["eval", "--run", trained.run_dir.name, "--suite", "arithmetic", "--limit", "6"]

    measured = run_rollout(
        *words,
        *("--max-tokens", "8", "--output", "json"),
        folder=tmp_path,
        environment={"ROLLOUT_HOME": str(trained.home)},
    )
    assert measured.returncode == 0, measured.stderr

    assert json.loads(measured.stdout)["reason"] == "Finished"
    document = json.loads((trained.home / "eval-1" / "worker.json").read_text())
    folder = trained.run_dir / "exports" / "0-1"
    assert document["spec"]["model"]["uri"] == folder.as_uri()
    assert (folder / "config.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --model or --run"),
        (["--model", "rollout://tiny-adder", "--run", "a"], "give --model or --run"),
        (
            ["--model", "rollout://tiny-adder", "--best"],
            "--step and --best choose weights of a run",
        ),
        (["--model", "rollout://tiny-adder", "--step", "3"], "give --run"),
        (["--run", "nobody-1"], "no run 'nobody-1'"),
    ],
)
def test_what_is_measured_is_named_once(words, said):
    done = CliRunner().invoke(app, ["eval", "--suite", "arithmetic", *words])

    assert isinstance(done.exception, SpecError)
    assert said in str(done.exception)


def test_a_gate_that_is_missed_fails_the_run(tmp_path):
    gate = '{metric: accuracy, lowerBound: "0.99", action: StopRun}'
    job = start(tmp_path, ALONE.replace("maxPrompts: 120", f"maxPrompts: 4, gate: {gate}"))

    assert job.wait() == 3
    assert job.result()["reason"] == "GateFailed"
    assert "low end of accuracy" in job.result()["message"]


def test_a_suite_of_ones_own_is_asked_and_scored(tmp_path):
    (tmp_path / "own_suite.py").write_text(OWN_SUITE)
    job = start(tmp_path, OWN)
    job.finish()

    with open_ledger(job.run_dir) as ledger:
        rewards = [one.reward for one in ledger.evaluation_samples("own", "report", 0)]
    assert rewards == [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]


QUESTIONS = [
    {"question": f"Which is {n}?", "choices": list("1234"), "answer": n - 1, "subject": "our_own"}
    for n in (1, 2, 3, 4)
]


@pytest.mark.usefixtures("warm_starts")
def test_a_suite_of_the_harness_reports_its_own_metrics(tmp_path, monkeypatch):
    (tmp_path / "mine.jsonl").write_text("\n".join(json.dumps(one) for one in QUESTIONS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path / "runs"))
    model = "rollout://tiny-qwen2?hidden=64&layers=1&heads=2&kv_heads=1&intermediate=64&context=512"
    words = ["--suite", "mmlu-generative", "--parameter", "mmlu-generative.uri=mine.jsonl"]

    done = CliRunner().invoke(
        app, ["eval", "--model", model, *words, "--max-tokens", "8", "--output", "json"]
    )

    assert done.exit_code == 0, done.output
    (measured,) = json.loads(done.stdout)["evaluations"]
    assert {"accuracy", "exact", "invalid", "cut"} <= measured["metrics"].keys()
    assert measured["metrics"]["exact"] == measured["metrics"]["accuracy"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("uri=x", "expected SUITE.NAME=VALUE"),
        ("gsm8k.uri", "expected SUITE.NAME=VALUE"),
        ("gsm8k.uri=x", "'gsm8k' is not among --suite arithmetic"),
    ],
)
def test_a_parameter_names_its_suite(given, said):
    words = ["--model", "rollout://tiny-adder", "--suite", "arithmetic", "--parameter", given]
    done = CliRunner().invoke(app, ["eval", *words])

    assert isinstance(done.exception, SpecError)
    assert said in str(done.exception)
