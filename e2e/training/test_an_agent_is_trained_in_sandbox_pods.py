"""An agent that owns its loop is trained in real pods, each episode in a sandbox pod, some of which are killed.

It is a program that asks its endpoint, twice where the first reply is no number, and leaves an answer, which a verifier
judges in the same pod. The chain is the one of a run on one machine, in bubblewrap, that nobody disturbed.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from harmed_sandboxes import Trained, train_and_harm
from samples import build_small_run
from watched import Result, Stage, run_here

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.timeout(1800)]

STEPS = 3
ROWS = [{"prompt": f"1{n}+2{n}=", "answer": str(30 + 2 * n)} for n in range(8)]
AGENT = """
import json, os, sys, urllib.request

def ask(messages):
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

question = sys.stdin.read()
said = [{"role": "user", "content": question}]
reply = ask(said)
if not reply.strip().isdigit():
    reply = ask(said + [{"role": "assistant", "content": reply}, {"role": "user", "content": question}])
open("answer.txt", "w").write(reply)
"""
VERIFIER = """
import json
said, row = open("answer.txt").read(), json.load(open("/tests/row.json"))
raise SystemExit(0 if said and said.strip()[-1:] == row["answer"][-1:] else 1)
"""


FILES = {"clerk.py": AGENT, "check.py": VERIFIER}
CODE = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "code"},
    "data": FILES,
}


def build_run(data: str, code: dict[str, Any]) -> dict[str, Any]:
    train = {
        "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 4}},
        "data": {"jsonl": {"uri": data}},
        "environment": {
            "agent": {
                "command": ["python3", "clerk.py"],
                "files": ["clerk.py"],
                "verifier": {"command": ["python3", "/tests/check.py"], "files": ["check.py"]},
            }
        },
        "rewards": [{"builtin": {"name": "environment"}}],
        "sampling": {"maxNewTokens": 8},
        "maxSteps": STEPS,
    }
    model = {"uri": "rollout://tiny-adder?steps=0"}
    return build_small_run("clerk", train, model=model, code=code)


def write_rows(folder: Path) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


@pytest.fixture(scope="module")
def trained(stage: Stage) -> Trained:
    write_rows(stage.volume)
    stage.kubectl.apply(CODE)
    code = {"configMap": {"name": "code"}}
    return train_and_harm(stage.start(build_run("file:///var/lib/rollout/rows.jsonl", code)))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, trained: Trained) -> Result:
    """The same manifest on this machine, in bubblewrap."""
    folder = tmp_path_factory.mktemp("here")
    write_rows(folder)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return run_here(build_run((folder / "rows.jsonl").as_uri(), {"path": "."}), folder)


def test_it_succeeds_in_one_attempt_with_a_sandbox_pod_for_each_episode(trained: Trained):
    conditions = {one["type"]: one for one in trained.run["status"]["conditions"]}
    assert conditions["Finished"]["reason"] == "Succeeded"
    assert trained.run["status"]["attempt"] == 1
    assert len(trained.sandboxes) > 1
    assert trained.left == []


def test_its_chain_is_the_one_of_a_run_on_one_machine_that_nobody_disturbed(
    trained: Trained, here: Result
):
    assert [step for step, _ in here.chains] == list(range(1, STEPS + 1))
    assert trained.result.chains == here.chains
