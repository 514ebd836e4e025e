"""A user's function may raise, hang, die or lie: each is a RewardError, and the next batch works."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from rollout.common.child_processes import is_running
from rollout.errors import RewardError, SpecError
from rollout.rewards.build import build_rewards
from rollout.types import Completion, Message
from rollout_api.v1alpha1.environment import Reward

pytestmark = pytest.mark.process

CODE = """
    import os, subprocess, time, sys
    import helper_of_mine

    def brevity(prompts, completions, rows):
        print("printing is harmless")
        return [1.0 / (1 + len(c.text)) for c in completions]

    def named(prompts, completions, rows, bonus="0"):
        return [{"long": float(len(c.text)), "bonus": float(bonus)} for c in completions]

    def raises(prompts, completions, rows):
        return [1.0 / (len(c.text) - 3) for c in completions]

    def hangs(prompts, completions, rows):
        while any(c.text == "hang" for c in completions):
            time.sleep(0.01)
        return [0.0] * len(completions)

    def leaves(prompts, completions, rows):
        sleeps = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
        detached = "import os, sys; os.fork() and sys.exit(); os.setsid(); " + sleeps
        started = [subprocess.Popen([sys.executable, "-c", code], stdout=-1) for code in (sleeps, detached)]
        return [float(one.stdout.readline()) for one in started]

    def dies(prompts, completions, rows):
        if completions[0].text == "die":
            print("about to go", file=sys.stderr)
            os._exit(3)
        return [0.0] * len(completions)

    def aborts(prompts, completions, rows):
        os.kill(os.getpid(), 11)

    def nan(prompts, completions, rows):
        return [float("nan")] * len(completions)

    def short(prompts, completions, rows):
        return [0.0]

    def strange(prompts, completions, rows):
        return [lambda: 0.0 for _ in completions]

    def array(prompts, completions, rows):
        import numpy
        return numpy.ones(len(completions), numpy.float32)

    def pid(prompts, completions, rows):
        return [float(os.getpid())] * len(completions)

    def torch_is_here(prompts, completions, rows):
        return [float("torch" in sys.modules)] * len(completions)

    not_a_function = 3
"""


@pytest.fixture
def build(tmp_path):
    (tmp_path / "my_rewards.py").write_text(textwrap.dedent(CODE))
    (tmp_path / "helper_of_mine.py").write_text("")
    (tmp_path / "broken.py").write_text("import no_such_package\n")
    built = []

    def build_function(function, *, seconds=20, where=None, parameters=()):
        python = {"function": function, "parameters": list(parameters)}
        python |= where or {"module": "my_rewards"}
        reward = Reward.model_validate({"python": python, "timeoutSeconds": seconds})
        built.append(build_rewards([reward], folders=[tmp_path]))
        return built[-1]

    yield build_function
    for pipeline in built:
        pipeline.close()


def run(pipeline, *texts):
    completions = [
        Completion(token_ids=(1,), logprobs=(0.0,), finish="stop", text=t) for t in texts
    ]
    rows = [{"prompt": f"question {i}", "answer": "a"} for i in range(len(texts))]
    prompts = [(Message(role="user", content=row["prompt"]),) for row in rows]
    return pipeline.score(prompts, completions, rows)


def values(scored):
    return [total for total, _ in scored]


def test_a_function_in_three_lines_scores(build):
    assert values(run(build("brevity"), "", "abc")) == [1.0, 0.25]


def test_a_function_takes_parameters_and_names_its_parts(build):
    pipeline = build("named", parameters=[{"name": "bonus", "value": "2"}])

    assert run(pipeline, "abc") == [(5.0, {"named": 5.0, "named/long": 3.0, "named/bonus": 2.0})]


def test_an_array_is_as_good_as_a_list(build):
    assert values(run(build("array"), "a", "b")) == [1.0, 1.0]


def test_its_process_is_kept_and_never_loads_torch(build):
    pid = build("pid")

    first, second = values(run(pid, "a")), values(run(pid, "a"))

    assert first == second != [float(os.getpid())]
    assert values(run(build("torch_is_here"), "a")) == [0.0]


def test_one_that_raises_names_error_line_and_row(build):
    pipeline = build("raises")

    with pytest.raises(RewardError) as caught:
        run(pipeline, "ab", "abc", "abcd")

    message = str(caught.value)
    assert "'raises' (raises in my_rewards)" in message
    assert "ZeroDivisionError" in message
    assert "my_rewards.py:13" in message
    assert "row 1 of the batch, prompt 'question 1'" in message
    assert values(run(pipeline, "ab")) == [-1.0]


def test_one_that_hangs_is_ended_says_where_and_is_started_again(build):
    pipeline = build("hangs", seconds=1)
    pipeline.start()

    start = time.monotonic()
    with pytest.raises(RewardError) as caught:
        run(pipeline, "hang", "b")
    waited = time.monotonic() - start

    message = str(caught.value)
    assert "did not answer within 1 s for 2 completions" in message
    assert "question 0" in message
    assert 'my_rewards.py", line 17 in hangs' in message
    assert "timeoutSeconds" in message
    assert waited >= 1
    assert values(run(pipeline, "b")) == [0.0]


def test_what_one_has_started_and_detached_ends_with_it(build):
    pipeline = build("leaves")
    left = [int(pid) for pid in values(run(pipeline, "a", "b"))]
    assert all(is_running(pid) for pid in left)

    pipeline.close()

    deadline = time.monotonic() + 60
    while alive := [pid for pid in left if is_running(pid)]:
        assert time.monotonic() < deadline, f"{alive} live on"
        time.sleep(0.01)


def test_one_that_ends_its_process_is_named_and_started_again(build):
    pipeline = build("dies")

    with pytest.raises(RewardError, match=r"ended its process .exit code 3.; it said: about to go"):
        run(pipeline, "die")
    assert values(run(pipeline, "b")) == [0.0]


def test_one_that_crashes_is_named(build):
    with pytest.raises(RewardError, match="SIGSEGV"):
        run(build("aborts"), "a")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("nan", "returned nan for row 0, prompt 'question 0'"),
        ("short", "returned 1 values for 2 completions"),
        ("strange", "its return value cannot be sent"),
    ],
)
def test_one_that_returns_no_number_each_is_named(build, function, says):
    with pytest.raises(RewardError, match=says):
        run(build(function), "a", "b")


@pytest.mark.parametrize(
    ("function", "where", "says"),
    [
        (
            "missing",
            {"module": "my_rewards"},
            "module my_rewards has no 'missing'; it has .*brevity",
        ),
        ("x", {"module": "nowhere"}, "module 'nowhere' cannot be imported: ModuleNotFoundError"),
        ("x", {"module": "broken"}, r"no_such_package.*broken.py:1"),
        ("x", {"path": "nowhere.py"}, "python file 'nowhere.py' was not found .looked at /"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_refused_at_the_start(build, function, where, says):
    with pytest.raises(SpecError, match=says):
        build(function, where=where).start()


def test_a_file_beside_the_manifest_is_loaded_by_path(build, tmp_path):
    (tmp_path / "helper_of_mine.py").write_text("")
    (tmp_path / "file.py").write_text("def f(p, c, r): return [2.0] * len(c)\n")

    assert values(run(build("f", where={"path": "file.py"}), "a")) == [2.0]


def test_a_function_pickled_by_value_is_loaded(build, tmp_path):
    import cloudpickle

    bonus = 0.5

    def closure(prompts, completions, rows):
        return [bonus] * len(completions)

    (tmp_path / "closure.pkl").write_bytes(cloudpickle.dumps(closure))
    pipeline = build("closure", where={"path": str(tmp_path / "closure.pkl")})

    assert values(run(pipeline, "a")) == [0.5]


def test_a_large_batch_passes_through_the_pipes(build):
    texts = ["x" * 2000] * 500

    assert len(run(build("brevity"), *texts)) == 500


ORPHAN = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from rollout.rewards.build import build_rewards
from rollout.types import Completion
from rollout_api.v1alpha1.environment import Reward
reward = Reward.model_validate({{"python": {{"module": "my_rewards", "function": "pid"}}}})
pipeline = build_rewards([reward], folders=[Path({folder!r})])
completion = Completion(token_ids=(), logprobs=(), finish="stop")
print(int(pipeline.score([()], [completion], [{{"prompt": ""}}])[0][0]), flush=True)
input()
"""


def test_a_killed_parent_leaves_no_child(build, tmp_path):
    build("pid")
    script = ORPHAN.format(tests=str(tmp_path), folder=str(tmp_path))
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and _runs(child):
        time.sleep(0.02)

    assert not _runs(child)


STUCK_IN_C = """
    import os, re
    from pathlib import Path

    def stuck(prompts, completions, rows):
        path = Path(__file__).with_name("pid")
        path.with_suffix(".new").write_text(str(os.getpid()))
        path.with_suffix(".new").rename(path)
        re.match("(a+)+$", "a" * 64 + "b")
"""


def test_a_killed_parent_leaves_no_child_that_hangs_in_c_and_lets_no_thread_run(tmp_path):
    (tmp_path / "my_rewards.py").write_text(textwrap.dedent(STUCK_IN_C))
    script = ORPHAN.replace("pid", "stuck", 1).format(tests=str(tmp_path), folder=str(tmp_path))
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (tmp_path / "pid").exists():
        time.sleep(0.02)
    child = int((tmp_path / "pid").read_text())
    try:
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and _runs(child):
            time.sleep(0.02)
        assert not _runs(child)
    finally:
        parent.stdin.close()
        if _runs(child):
            os.kill(child, signal.SIGKILL)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - no file of ours
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
