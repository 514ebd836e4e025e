"""Folders of tasks in Harbor's form are played as they lie there; what cannot be had here is refused by name.

The agent asks its episode's endpoint once and writes what it hears; sandbox, endpoint and verifier are the real ones.
"""

from __future__ import annotations

import sys

import pytest
from harbor_kit import AGENT, FOLDER, HERE, IMAGE, builder, every_row, laid, play
from hypothesis import given
from hypothesis import strategies as st

from rollout.environments.adapters.harbor import digest_of
from rollout.environments.adapters.harbor_files import (
    HarborHere,
    dockerfile_lines,
    is_same_image,
    read_task,
)
from rollout.environments.agents.program import read_verdict
from rollout.errors import DataError, InfrastructureError, SpecError
from rollout.tools.sandbox.agent_sandbox import LOGS
from rollout.tools.sandbox.contract import CommandResult, Stream


@pytest.fixture
def code(tmp_path, monkeypatch):
    """The run's code: an agent, and a folder for tasks."""
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.process
@pytest.mark.parametrize(("reply", "reward"), [("hello", 1.0), ("goodbye", 0.25)])
async def test_a_folder_is_played_unmodified(code, sandbox_host, reply, reward):
    ended = await play(code, reply)
    assert (ended.kind, ended.turn_reward, ended.signals["verdict"]) == ("stop", reward, reward)


@pytest.mark.process
async def test_named_rewards_are_read_and_win_over_the_number(code, sandbox_host):
    script = """#!/bin/sh
echo 0 > /logs/verifier/reward.txt
echo '{"reward": 0.5, "style": 0.1}' > /logs/verifier/reward.json
"""
    assert (await play(code, "x", {"tests/test.sh": script})).turn_reward == 0.5


@pytest.mark.process
@pytest.mark.parametrize(
    "script",
    ["#!/bin/sh\nexit 0\n", "#!/bin/sh\nkill -9 $$\n", "#!/nowhere/at/all\n"],
    ids=["writes-nothing", "is-killed", "cannot-run"],
)
async def test_a_verifier_that_crashes_is_infrastructure(code, sandbox_host, script):
    with pytest.raises(InfrastructureError, match="the verifier ended by"):
        await play(code, "hello", {"tests/test.sh": script})


@pytest.mark.process
async def test_what_an_agent_writes_as_its_reward_is_gone_when_it_is_judged(code, sandbox_host):
    forged = "import os; os.makedirs('/tmp/.logs/verifier'); open('/logs/verifier/reward.json', 'w').write('9')\n"
    (code / "agent.py").write_text(forged + AGENT)
    assert (await play(code, "hello")).turn_reward == 1.0


TOML = FOLDER["task.toml"]
DOCKERFILE = FOLDER["environment/Dockerfile"]


def with_lines(section, *lines):
    return {"task.toml": TOML.replace(f"[{section}]", "\n".join([f"[{section}]", *lines]))}


def with_line(line):
    return {"environment/Dockerfile": DOCKERFILE + line + "\n"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"environment/Dockerfile": "FROM ubuntu:24.04"}, "its image ubuntu:24.04 cannot be had"),
        (with_lines("environment", 'docker_image = "me/it:1"'), "one plain image is taken"),
        (
            {
                "environment/Dockerfile": None,
                "environment/start.txt": None,
                **with_lines("environment", 'docker_image = "me/it:1"'),
            },
            "its image me/it:1 cannot be had here",
        ),
        ({"environment/Dockerfile": None}, "it names no image"),
        (with_line("FROM other AS second"), "one plain image is taken"),
        (with_line("RUN apt-get install -y \\\n  curl"), "RUN apt-get install -y .*`ran: 'true'`"),
        (with_line("WORKDIR /workspace"), "a sandbox works in /app"),
        (with_line("COPY ../secret ."), "COPY ../secret .: ../secret is not there"),
        (with_line("COPY start.txt /etc/start"), "only what lies below /app"),
        (with_line("COPY --from=x a b"), "expected files and folders of environment/"),
        (with_line('COPY ["a", "b"]'), "written as a list"),
        (with_line("USER nobody"), "USER nobody: not understood here"),
        ({"environment/docker-compose.yaml": "x"}, "a sandbox is one program's"),
        (with_lines("environment", "gpus = 1"), "environment.gpus is 1"),
        (with_lines("environment", 'os = "windows"'), "environment.os is 'windows'"),
        (with_lines("environment", 'workdir = "/root"'), "environment.workdir is '/root'"),
        (with_lines("environment", 'skills_dir = "/s"'), "environment.skills_dir"),
        (with_lines("environment", "[[environment.mcp_servers]]", 'name = "x"'), "mcp_servers"),
        (with_lines("verifier", 'environment_mode = "separate"'), "environment_mode is 'separate'"),
        ({"task.toml": TOML + '[[steps]]\nname = "one"\n'}, "steps"),
        ({"task.toml": TOML.replace('"no-network"', '"public"')}, "it may use the network"),
        ({"task.toml": TOML.replace('network_mode = "no-network"', "")}, "it may use the network"),
        (with_lines("verifier", 'network_mode = "public"'), "it may use the network"),
        ({"task.toml": TOML.replace('"hello"', '"${KEY}"')}, "WANTED is taken from outside"),
        ({"task.toml": TOML.replace("60.0", "-1")}, "verifier.timeout_sec must be seconds"),
        ({"task.toml": TOML.replace("memory_mb = 512", 'memory = "lots"')}, "must be a size"),
        ({"task.toml": "="}, "task.toml is no TOML"),
        ({"instruction.md": None}, "instruction.md cannot be read"),
        ({"tests/test.sh": None, "tests/x.py": ""}, "tests/test.sh is not there"),
    ],
)
def test_what_a_sandbox_here_has_not_is_refused_by_name(tmp_path, changes, said):
    with pytest.raises(SpecError, match=rf"harbor: task greeting: .*{said}"):
        read_task(laid(tmp_path, changes), HERE)


@pytest.mark.parametrize("changes", [with_line("RUN a && \\\n b"), {"task.toml": "[environment]"}])
def test_what_the_user_says_of_this_machine_is_taken(tmp_path, changes):
    here = HarborHere(images=HERE.images, offline=True, ran=True)
    task = read_task(laid(tmp_path, changes), here)
    assert [name for name, _ in task.files] == ["data/more.txt", "start.txt"]
    assert "solution" not in str(task)


def test_sizes_and_times_are_the_tasks(tmp_path):
    task = read_task(laid(tmp_path), HERE)
    assert (task.agent_seconds, task.verifier_seconds) == (120.0, 60.0)
    assert task.memory_bytes == 512 << 20
    older = TOML.replace("memory_mb = 512", 'memory = "2G"').replace(
        'network_mode = "no-network"', "allow_internet = false"
    )
    changed = read_task(laid(tmp_path / "older", {"task.toml": older}), HERE)
    assert changed.memory_bytes == 2 << 30


def test_links_lead_nowhere(tmp_path):
    folder = laid(tmp_path)
    (folder / "tests" / "mine").symlink_to("/etc/passwd")
    with pytest.raises(SpecError, match="mine is a link"):
        read_task(folder, HERE)


@given(st.text(alphabet="FROM COPY\\\n#<[ab\"'$", max_size=60))
def test_any_dockerfile_is_read_or_refused(tmp_path_factory, text):
    folder = laid(tmp_path_factory.mktemp("drawn"), {"environment/Dockerfile": text})
    assert all(word for word, _ in dockerfile_lines(text))
    with pytest.raises(SpecError, match="harbor: task greeting"):
        read_task(folder, HarborHere())


def test_every_task_is_a_row_of_one_split(code):
    for number in range(60):
        laid(code / "tasks", name=f"task-{number}")
    built = builder().made
    rows = {split: built.rows(split) for split in ("train", "selection", "report")}
    names = [row["task"] for found in rows.values() for row in found]
    assert sorted(names) == sorted(f"task-{number}" for number in range(60))
    assert [row["task"] for row in builder(only="task-7").made.rows("train")] in ([], ["task-7"])


def test_a_task_that_has_changed_since_is_named(code):
    laid(code / "tasks")
    (row,) = every_row(builder())
    laid(code / "tasks", {"tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"})
    with pytest.raises(DataError, match="task greeting is another one"):
        builder().made.build(row)


def test_the_digest_is_of_everything_that_is_played(tmp_path):
    plain = digest_of(read_task(laid(tmp_path / "a"), HERE))
    assert plain == digest_of(read_task(laid(tmp_path / "b", {"solution/solve.sh": "other"}), HERE))
    for path in ("instruction.md", "environment/start.txt", "tests/test.sh"):
        changed = read_task(laid(tmp_path / path.replace("/", "-"), {path: "other"}), HERE)
        assert digest_of(changed) != plain


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"tasks": "nowhere"}, "no folder 'nowhere'"),
        ({"tasks": "empty"}, "is no task and holds none"),
        ({"only": "another"}, "no task 'another'; there are greeting"),
        ({"turns": "0"}, "turns must be a whole number of 1 to 64, got '0'"),
        ({"offline": "yes"}, "offline must be true or false, got 'yes'"),
        ({"command": ""}, "command is empty"),
        ({"command": "'"}, "command: No closing quotation"),
        ({"files": "nobody.py"}, "nobody.py"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(code, given_, said):
    laid(code / "tasks")
    (code / "empty").mkdir()
    with pytest.raises(SpecError, match=said):
        builder(**given_)


@pytest.mark.parametrize(
    ("written", "verdict"),
    [
        (b'{"reward": 0.5, "x": 1}', 0.5),
        (b'{"accuracy": 1}', 1.0),
        (b"0.75", 0.75),
        (b'{"a": 1, "b": 2}', None),
        (b'{"reward": true}', None),
        (b'{"reward": "1"}', None),
        (b"NaN", None),
        (b"", None),
        (b"[1]", None),
    ],
)
def test_a_file_of_rewards_is_a_number_or_infrastructures(written, verdict):
    ended = CommandResult(cause="exit", code=1, stdout=Stream(), stderr=Stream())
    files = {f"{LOGS}/verifier/reward.json": written}
    if verdict is None:
        with pytest.raises(InfrastructureError):
            read_verdict(ended, files, by_file=True)
    else:
        assert read_verdict(ended, files, by_file=True) == verdict


def test_the_package_is_not_needed():
    assert "harbor" not in sys.modules


DIGESTS = ("@sha256:" + "0" * 64, "@sha256:" + "1" * 64)


@pytest.mark.parametrize(
    ("named", "wanted", "same"),
    [
        (IMAGE, IMAGE, True),
        (f"docker.io/library/{IMAGE}{DIGESTS[0]}", IMAGE, True),
        ("ubuntu", "ubuntu:latest", True),
        (f"ubuntu{DIGESTS[0]}", f"ubuntu:24.04{DIGESTS[0]}", True),
        (f"ubuntu{DIGESTS[0]}", "ubuntu:24.04", False),
        (f"{IMAGE}{DIGESTS[0]}", f"{IMAGE}{DIGESTS[1]}", False),
        ("registry.example:5000/python:3.13-slim", IMAGE, False),
        (IMAGE, "python:3.13", False),
    ],
)
def test_an_image_is_the_one_that_the_pods_have_by_name_tag_and_digest(named, wanted, same):
    assert is_same_image(named, wanted) is same


def test_the_image_of_the_pods_takes_its_own_place_only(tmp_path):
    pods = HarborHere(image=f"docker.io/library/{IMAGE}{DIGESTS[0]}")
    assert read_task(laid(tmp_path), pods).name == "greeting"
    with pytest.raises(
        SpecError, match=r"ubuntu:24\.04 cannot be had here; where the image of the pods"
    ):
        read_task(laid(tmp_path, {"environment/Dockerfile": "FROM ubuntu:24.04"}), pods)
    prebuilt = {"environment/Dockerfile": None, "environment/start.txt": None}
    prebuilt |= with_lines("environment", f'docker_image = "{IMAGE}"')
    with pytest.raises(
        SpecError, match="with nothing of what its /app holds, name it in `instead`"
    ):
        read_task(laid(tmp_path / "prebuilt", prebuilt), pods)
