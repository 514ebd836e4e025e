"""``rollout plugins test``: what keeps the contract passes, and what breaks it is told which part."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
from plugin_kit import ECHO, asked, client, completion, write
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import InfrastructureError, PluginError, SpecError
from rollout.plugins.sidecar.client import DEATHS_MAX, SCORE
from rollout.plugins.sidecar.conformance.running import check_plugin
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.reward import PluginReward

pytestmark = pytest.mark.process


def called(*words):
    return CliRunner().invoke(app, ["plugins", *map(str, words)])


def failed(folder, **parameters):
    return {one.name: one.why for one in check_plugin(folder, parameters) if not one.has_passed}


@pytest.mark.parametrize("kind", ["reward", "environment", "tool", "evaluation"])
def test_what_new_writes_keeps_the_contract(kind, tmp_path):
    assert called("new", tmp_path / "polite", "--kind", kind).exit_code == 0
    done = called("test", tmp_path / "polite", "--parameter", "word=tea")

    assert done.exit_code == 0, done.output
    assert "FAILED" not in done.stdout
    assert done.stdout.count("passed") == {"tool": 12, "evaluation": 11}.get(kind, 10)
    told = json.loads(called("show", tmp_path / "polite", "--output", "json").stdout)
    assert (told["kind"], told["contract"]) == (kind, 2 if kind == "environment" else 1)
    assert "polite 0.1.0" in called("list", tmp_path).stdout


DEAF = """
import asyncio, rollout.plugins.serving as s
class Deaf(asyncio.Event):
    def set(self): pass
s.asyncio.Event = Deaf
serve(reward=lambda p, c, r: [0.0] * len(c))
"""
BROKEN = {
    "raises at import": ("raise RuntimeError('no such shelf')", "serves", "no such shelf"),
    "refuses its parameters": (
        "class R:\n    def __init__(self): raise ValueError('no key')\nserve(reward=R)",
        "serves",
        "no key",
    ),
    "not a number": (
        "serve(reward=lambda p, c, r: [float('nan')] * len(c))",
        "scores every sample",
        "nan",
    ),
    "too few": (
        "import rollout.plugins.serving as s\ns._Rewards._score_all = lambda *a: []\nserve(reward=print)",
        "scores every sample",
        "0 scores for 3 samples",
    ),
    "a batch matters": (
        "serve(reward=lambda p, c, r: [float(len(c))] * len(c))",
        "scores do not depend on the batch",
        "together",
    ),
    "ends with a large row": (
        "import os\nserve(reward=lambda p, c, r: [os._exit(3) if 'large' in str(r) else 0.0 for _ in c])",
        "takes large requests",
        "exit code 3",
    ),
    "stays after SIGTERM": (
        DEAF,
        "ends when told",
        "was killed",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_contract_is_named(name, tmp_path):
    body, check, why = BROKEN[name]
    found = failed(write(tmp_path / "plugin", body))

    assert check in found, found
    assert why in found[check]


def test_the_command_exits_with_1_where_a_check_fails(tmp_path):
    folder = write(tmp_path / "plugin", BROKEN["not a number"][0])
    done = called("test", folder, "--output", "json")

    assert done.exit_code == 1
    assert any(one["why"] for one in json.loads(done.stdout))


def test_what_does_not_serve_in_time_is_told(tmp_path):
    command = ["sh", "-c", "echo warming up; exec sleep 600"]
    folder = write(tmp_path / "plugin", ECHO, startSeconds=4, command=command)

    with pytest.raises(SpecError, match=r"did not serve within 4 s \(startSeconds\).*warming up"):
        client(folder).start()


def test_another_version_than_its_yaml_says_is_refused(tmp_path):
    other = write(tmp_path / "other", ECHO, version="2.0.0")
    folder = write(tmp_path / "plugin", f"import os\nos.chdir({str(other)!r})\n" + dedent(ECHO))

    with pytest.raises(
        SpecError, match=r"its process says version '2\.0\.0', plugin\.yaml says '1\.0\.0'"
    ):
        client(folder).start()


def test_a_program_that_is_not_there_is_told(tmp_path):
    folder = write(tmp_path / "plugin", ECHO, command=["no-such-program"])

    with pytest.raises(SpecError, match="no-such-program: No such file"):
        client(folder).start()


def test_values_are_named_and_their_sum_is_the_score(tmp_path):
    told = {
        "folder": str(write(tmp_path / "plugin", ECHO)),
        "parameters": {},
        "timeout_seconds": 30,
    }
    reward = PluginReward(json.dumps(told))
    found = reward.score([asked()] * 2, [completion("abc"), completion("")], [{"n": 1}, {"n": 2}])

    assert found == [
        {"length": 3, "row": 1, "score": 4},
        {"length": 0, "row": 2, "score": 2},
    ]
    reward._client.close()


def test_a_sample_that_it_fails_at_is_named(tmp_path):
    told = {
        "folder": str(write(tmp_path / "plugin", ECHO)),
        "parameters": {},
        "timeout_seconds": 30,
    }
    reward = PluginReward(json.dumps(told))

    with pytest.raises(PluginError, match="sample 1 of the batch: KeyError: 'n'"):
        reward.score([asked()] * 2, [completion("a")] * 2, [{"n": 1}, {}])
    reward._client.close()


def score_once(made, seconds=30.0):
    return made.ask(SCORE, contract.ScoreRequest(samples=[contract.Sample(row_json="{}")]), seconds)


def test_a_plugin_that_dies_in_a_call_is_infrastructure_and_after_three_deaths_it_is_left(tmp_path):
    folder = write(tmp_path / "plugin", "import os\nserve(reward=lambda p, c, r: os._exit(3))")
    made = client(folder)
    errors = []
    while len(errors) < DEATHS_MAX + 3:
        try:
            score_once(made)
        except (InfrastructureError, SpecError) as error:
            errors.append(error)
            if isinstance(error, SpecError):
                break

    assert isinstance(errors[-1], SpecError)
    assert f"has died {DEATHS_MAX} times; the last time: exit code 3" in str(errors[-1])
    made.close()


def test_a_call_that_hangs_is_given_up_and_costs_nobody_else_anything(tmp_path):
    body = """
        import time
        def score(prompts, completions, rows):
            time.sleep(rows[0].get("sleep", 0))
            return [1.0] * len(rows)
        serve(reward=score)
    """
    made = client(write(tmp_path / "plugin", body))
    hanging = contract.ScoreRequest(samples=[contract.Sample(row_json='{"sleep": 60}')])
    score_once(made)
    with pytest.raises(InfrastructureError, match="DEADLINE_EXCEEDED"):
        made.ask(SCORE, hanging, 0.2)

    assert score_once(made).scores[0].value == 1.0
    made.close()


def test_what_it_starts_and_prints_does_not_outlive_it(tmp_path):
    body = """
        import subprocess, sys
        left = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(f"pid {left.pid}", flush=True)
        def score(prompts, completions, rows):
            for _ in range(64):
                print("x" * (1 << 16))
            return [float(left.pid)] * len(rows)
        serve(reward=score)
    """
    made = client(write(tmp_path / "plugin", body))
    pid = int(score_once(made).scores[0].value)
    kept = os.fstat(made._running.process._said.fileno()).st_size
    assert psutil.pid_exists(pid)
    made.close()

    assert kept <= 1 << 20
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_plugin_ends_with_whoever_asked_for_it_however_that_ends(tmp_path):
    folder = write(tmp_path / "plugin", ECHO)
    code = (
        "import sys, time; from pathlib import Path\n"
        "from rollout.plugins.sidecar.client import PluginClient\n"
        "from rollout.plugins.sidecar.manifest import read_plugin\n"
        "made = PluginClient(read_plugin(Path(sys.argv[1])), {}); made.start()\n"
        "print(made.pid, flush=True); time.sleep(600)"
    )
    asker = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE)
    keeper = psutil.Process(int(asker.stdout.readline()))
    watched = [keeper, *keeper.children(recursive=True)]
    asker.send_signal(signal.SIGKILL)
    asker.wait()
    _, alive = psutil.wait_procs(watched, timeout=60)

    assert not alive
    asker.stdout.close()


def test_only_what_is_named_of_our_environment_is_handed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("SHELF_KEY", "for the plugin")
    body = """
        import json, os
        class Reward:
            def score(self, prompts, completions, rows):
                raise ValueError(json.dumps(sorted(os.environ)))
        serve(reward=Reward)
    """
    made = client(write(tmp_path / "plugin", body, env=["SHELF_KEY"]))
    seen = score_once(made).scores[0].failure.message

    assert "SHELF_KEY" in seen
    assert "AWS_SECRET_ACCESS_KEY" not in seen
    place = Path(made._running.process.socket).parent
    assert place.stat().st_mode & 0o077 == 0
    made.close()


def test_calls_beyond_its_concurrency_wait(tmp_path):
    body = """
        import threading, time
        held, most, lock = 0, 0, threading.Lock()
        def score(prompts, completions, rows):
            global held, most
            with lock:
                held += 1
                most = max(most, held)
            time.sleep(0.05)
            with lock:
                held -= 1
            return [float(most)] * len(rows)
        serve(reward=score)
    """
    made = client(write(tmp_path / "plugin", body, concurrency=2))
    made.start()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: score_once(made), range(8)))

    assert max(one.scores[0].value for one in answers) == 2
    made.close()
