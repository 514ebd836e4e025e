"""A task in Harbor's form, the agent that plays it, and one episode of it: wherever the sandboxes of this process are."""

from __future__ import annotations

from pathlib import Path

from rollout.environments.adapters.harbor import Harbor
from rollout.environments.adapters.harbor_files import HarborHere
from rollout.environments.plugin import RowsSource, wrap_class
from rollout.turns import Action, Ending
from rollout.types import Message

IMAGE = "python:3.13-slim"
HERE = HarborHere(images=frozenset({IMAGE}))
FOLDER = {
    "task.toml": """
schema_version = "1.1"
[task]
name = "examples/greeting"
description = "Write a greeting"
[metadata]
category = "files"
[agent]
timeout_sec = 120.0
[verifier]
timeout_sec = 60.0
env = { WANTED = "hello" }
[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 512
storage_mb = 10240
network_mode = "no-network"
""",
    "instruction.md": "Write hello into greeting.txt, after what is in start.txt.\n",
    "environment/Dockerfile": f"""
# what the container begins with
FROM {IMAGE}
WORKDIR /app
ENV GREETING_FILE=greeting.txt
COPY start.txt ./
COPY data /app/data
""",
    "environment/start.txt": "start ",
    "environment/data/more.txt": "more",
    "solution/solve.sh": "echo secret",
    "tests/test.sh": """#!/bin/bash
if [ "$(cat /app/$GREETING_FILE)" = "start $WANTED" ] && [ -f data/more.txt ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0.25 > /logs/verifier/reward.txt
fi
exit 7
""",
}
AGENT = """
import json, os, sys, urllib.request
said = [{"role": "user", "content": sys.stdin.read()}]
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "policy", "messages": said}).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
with urllib.request.urlopen(request) as answer:
    reply = json.load(answer)["choices"][0]["message"]["content"]
here = sorted(os.listdir("."))
assert here == ["data", "start.txt"] and not os.path.exists("/solution"), here
with open(os.environ["GREETING_FILE"], "w") as file:
    file.write(open("start.txt").read() + reply)
"""


def laid(place: Path, changes=None, name="greeting") -> Path:
    """A task's folder; None takes a file away."""
    for path, text in {**FOLDER, **(changes or {})}.items():
        if text is not None:
            (place / name / path).parent.mkdir(parents=True, exist_ok=True)
            (place / name / path).write_text(text)
    return place / name


def builder(**more):
    """As a manifest builds it."""
    given = {
        "tasks": "tasks",
        "command": "python3 /tmp/.agent/agent.py",
        "files": "agent.py",
        "instead": IMAGE,
    }
    return wrap_class(Harbor, {**given, **more}, "env")


def every_row(built):
    """Of all splits."""
    return [row for split in ("train", "selection", "report") for row in built.made.rows(split)]


async def play(code, reply, changes=None, **given) -> Ending:
    """One episode; ``given`` are further parameters."""
    laid(code / "tasks", changes)
    built = builder(**given)
    (row,) = RowsSource(every_row(built), "tasks").rows([0])
    env = built.build(row)
    try:
        state = await env.start()
        assert [one.text for one in state.messages] == [FOLDER["instruction.md"]]
        ended = await env.step(Action(message=Message(role="assistant", content=reply), text=reply))
    finally:
        await env.close()
    assert isinstance(ended, Ending)
    return ended
