"""docs/how-to/use-environments-of-other-libraries.md, followed with the packages themselves: each example is played, right and wrong."""

import os
import subprocess
import sys

import pytest
from docs_kit import ROOT, named_files

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(1800)]

PAGE = ROOT / "docs" / "how-to" / "use-environments-of-other-libraries.md"
PLAY = """
import asyncio
from rollout.environments.build import build_environment
from rollout.turns import Action, Ending
from rollout.types import Message
from pathlib import Path

async def play(builder, row, replies):
    env = builder.build(row)
    try:
        said = await env.start()
        for text in replies:
            assert not isinstance(said, Ending), said
            said = await env.step(Action(message=Message(role="assistant", content=text), text=text))
        return said
    finally:
        await env.close()

def builder_of(name, **changed):
    import yaml
    from rollout_api.v1alpha1.environment import Environment
    asked = yaml.safe_load(Path(name).read_text())["spec"]["train"]["environment"]
    for one in asked["python"]["parameters"]:
        one["value"] = changed.get(one["name"], one["value"])
    return build_environment(Environment.model_validate(asked), folders=[Path.cwd()])
"""
VERIFIERS = """
builder = builder_of("sums.yaml")
source = builder.source("train", 0)
held = sum(len(builder.source(split, 0)) for split in ("selection", "report"))
assert len(source) + held == 200, (len(source), held)
row = source.rows([0])[0]
right = asyncio.run(play(builder, row, [row["answer"]]))
wrong = asyncio.run(play(builder, row, ["nonsense"]))
assert (right.kind, right.owner) == ("agent-completed", "policy"), right
assert abs(right.turn_reward - 1.1) < 1e-9 and wrong.turn_reward == 0, (right, wrong)
assert right.signals == {"reward_right": 1.0, "reward_short": 1.0, "letters": 2.0, "turns": 1.0}, right
print("played")
"""
OPENENV = """
import socket, subprocess, sys, time, urllib.request
with socket.create_server(("127.0.0.1", 0)) as found:
    port = found.getsockname()[1]
server = subprocess.Popen([sys.executable, "-c", "import sys; sys.path.append(" + repr(FOLDER) + "); sys.argv = ['', '" + str(port) + "']\\n" + Path("guess_server.py").read_text()])
try:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            break
        except OSError:
            time.sleep(0.2)
    builder = builder_of("guess.yaml", url=f"http://127.0.0.1:{port}")
    row = builder.source("train", 0).rows([5])[0]
    ends = [asyncio.run(play(builder, row, [str(number)])) for number in range(10)]
    won = [one for one in ends if isinstance(one, Ending)]
    assert len(won) == 1 and (won[0].kind, won[0].turn_reward) == ("done", 1.0), ends
    assert ends[0] == asyncio.run(play(builder, row, ["0"]))
    lost = asyncio.run(play(builder, row, ["x", "y", "z"]))
    assert (lost.kind, lost.turn_reward, lost.signals["steps"]) == ("done", 0.0, 3.0), lost
finally:
    server.terminate()
    server.wait(30)
from rollout.errors import InfrastructureError
try:
    asyncio.run(play(builder, row, ["0"]))
except InfrastructureError as error:
    print("played", str(error)[:60])
"""


@pytest.mark.parametrize(
    ("requirement", "program"),
    [("verifiers==0.4.0", VERIFIERS), ("openenv==0.10.0", OPENENV)],
    ids=["verifiers", "openenv"],
)
def test_the_package_itself_is_played(requirement, program, packages_beside, tmp_path):
    folder = packages_beside(requirement, "python3")
    for name, text in named_files(PAGE).items():
        (tmp_path / name).write_text(text)
    head = f"import sys; FOLDER = {str(folder)!r}; sys.path.append(FOLDER)\n"
    path = os.pathsep.join([os.environ["PATH"], str(ROOT / "build" / "uv" / "bin")])

    done = subprocess.run(
        [sys.executable, "-c", head + PLAY + program],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    assert "played" in done.stdout
