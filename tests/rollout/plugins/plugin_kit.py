"""Plugins for tests: folders with a plugin.yaml and a plugin.py of a few lines."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

from rollout.plugins.sidecar.client import PluginClient
from rollout.plugins.sidecar.manifest import read_plugin
from rollout.types import Completion, Message

ECHO = """
    def score(prompts, completions, rows):
        return [{"length": len(one.text), "row": float(row["n"])} for one, row in zip(completions, rows)]
    serve(reward=score)
"""


def write(folder: Path, body: str, *, kind: str = "reward", **more: object) -> Path:
    """A plugin whose plugin.py has this body."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"contract": 1, "name": "tried", "version": "1.0.0", "kind": kind}
    manifest |= {"command": ["python", "plugin.py"], "startSeconds": 20, **more}
    (folder / "plugin.yaml").write_text(json.dumps(manifest))
    head = "from rollout.plugins.serving import serve\n"
    (folder / "plugin.py").write_text(head + dedent(body))
    return folder


def client(folder: Path, **parameters: str) -> PluginClient:
    """A client of it; nothing is started yet."""
    return PluginClient(read_plugin(folder), parameters)


def completion(text: str) -> Completion:
    """A reply."""
    return Completion(token_ids=(), logprobs=(), finish="stop", text=text)


def asked(text: str = "hello") -> tuple[Message, ...]:
    """A conversation."""
    return (Message(role="user", content=text),)
