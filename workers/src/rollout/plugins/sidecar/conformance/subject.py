"""What the checks are made on: a running plugin, what it is asked, and how it is killed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from rollout.environments.memory import EpisodeMemory
from rollout.errors import DataError
from rollout.plugins.sidecar.client import (
    CALL,
    CLOSE,
    CONTINUE,
    LEAVE,
    LIST,
    SCORE,
    START,
    STEP,
    SUITE_SCORE,
    TRACK,
    PluginCall,
    PluginClient,
)
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.kinds.suite import RowPages, ask_page
from rollout.plugins.sidecar.kinds.tool import heard_answer, heard_tools
from rollout.plugins.sidecar.manifest import PluginFolder
from rollout.plugins.sidecar.memory import MemoryDesk
from rollout.plugins.sidecar.reward import heard_scores
from rollout.plugins.sidecar.wire import failure_of, heard_turn
from rollout.tools.contract import ToolAnswer
from rollout.tools.foreign import PARTED
from rollout.turns import Ending, State, ToolSpec

EXAMPLES = "examples.jsonl"
EXAMPLES_MAX = 64
CALL_SECONDS = 30.0


class ExampleCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call of a tool, by the plugin's own name of it."""

    name: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class Example(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row, and the replies to it: one for a reward, for an environment one a turn. ``calls`` are of tools, in order.

    The row of a tracker is the metrics of a step; of data the ``split`` that is asked for.
    """

    row: dict[str, Any]
    replies: tuple[str, ...] = ("please", "")
    calls: tuple[ExampleCall, ...] = ()

    @property
    def row_json(self) -> str:
        """As it is sent."""
        return json.dumps(self.row)


BUILT_IN = (
    Example(row={"prompt": "Say please.", "answer": "please"}, replies=("please",)),
    Example(row={"prompt": "Say nothing.", "answer": ""}, replies=("",)),
    Example(row={"prompt": "Grüße, 世界 🙂", "answer": "🙂"}, replies=("🙂 \u200b\x00",)),
)
"""For a plugin without examples of its own."""


def read_examples(folder: Path) -> tuple[Example, ...]:
    """Those in the plugin's folder, else ours. Raises DataError naming the line."""
    path = folder / EXAMPLES
    if not path.is_file():
        return BUILT_IN
    found = []
    for number, line in enumerate(path.read_text("utf-8").splitlines()[:EXAMPLES_MAX], start=1):
        try:
            found.append(msgspec.json.decode(line, type=Example))
        except msgspec.DecodeError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
    if not found:
        raise DataError(f"{path} has no examples: expected lines of {{row: ..., replies: [...]}}")
    return tuple(found)


@dataclass(slots=True, kw_only=True)
class Subject:
    """One plugin under its checks. ``close`` when done."""

    plugin: PluginFolder
    parameters: Mapping[str, str]
    examples: Sequence[Example]
    client: PluginClient = field(init=False)
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.client = PluginClient(self.plugin, self.parameters)

    def once(self, seconds: float = CALL_SECONDS) -> None:
        """One call as a run would make it, checked."""
        if self.scores:
            self.score(self.samples()[:1], seconds)
        elif self.plugin.manifest.kind == "environment":
            self.play(self.examples[0], seconds)
        elif self.plugin.manifest.kind == "tracker":
            self.tell([self.fact(self.examples[0], 0)], seconds)
        elif self.plugin.manifest.kind == "data":
            RowPages().add(ask_page(self.client, self.splits[0], 0, seconds))
        else:
            self.use(self.examples[0], seconds)

    @property
    def scores(self) -> bool:
        """Whether it scores samples: a reward does, and a suite."""
        return self.plugin.manifest.kind in ("reward", "evaluation")

    @property
    def splits(self) -> tuple[str, ...]:
        """What rows are asked for: of an evaluation both, of data those that its examples name."""
        if self.plugin.manifest.kind == "evaluation":
            return ("selection", "report")
        return tuple(dict.fromkeys(str(one.row.get("split", "train")) for one in self.examples))

    @property
    def score_call(self) -> PluginCall:
        """By what it is asked for scores."""
        return SCORE if self.plugin.manifest.kind == "reward" else SUITE_SCORE

    def samples(self) -> list[contract.Sample]:
        """Every reply to every row."""
        return [sample(one.row, reply) for one in self.examples for reply in one.replies or ("",)]

    def score(
        self, samples: Sequence[contract.Sample], seconds: float = CALL_SECONDS
    ) -> list[dict[str, float]]:
        """The scores of one batch, checked."""
        request = contract.ScoreRequest(samples=samples)
        answer = self.client.ask(self.score_call, request, seconds)
        return heard_scores(answer, len(samples))

    def play(self, example: Example, seconds: float = CALL_SECONDS) -> list[State | Ending]:
        """What an episode says, from its start to its close, until the replies or the episode end. Its memory begins empty."""
        episode, desk = uuid.uuid4().hex, MemoryDesk(EpisodeMemory())
        began = contract.StartRequest(episode=episode, row_json=example.row_json)
        said = [heard_turn(self.hear(START, began, desk, seconds), first=True)]
        for turn, text in enumerate(example.replies):
            if isinstance(said[-1], Ending):
                break
            answer = self.hear(STEP, step(episode, turn, text), desk, seconds)
            said.append(heard_turn(answer, first=False))
        self.client.ask(CLOSE, contract.CloseRequest(episode=episode), seconds)
        return said

    def hear(
        self,
        call: PluginCall,
        request: contract.StartRequest | contract.StepRequest,
        desk: MemoryDesk,
        seconds: float = CALL_SECONDS,
        later: bytes = b"",
    ) -> contract.Turn:
        """The answer of an episode, once it has read in memory what it wants to. ``later``: fields that it does not know."""
        turn = self.client.ask(call, request.SerializeToString() + later, seconds)
        while desk.take(turn, uses_memory=self.client.uses_memory):
            found = desk.find(turn.reads)
            goes_on = contract.ContinueRequest(episode=request.episode, found=found)
            turn = self.client.ask(CONTINUE, goes_on.SerializeToString() + later, seconds)
        return turn

    def tools(self) -> tuple[ToolSpec, ...]:
        """What the policy would see."""
        return heard_tools(self.plugin, self.client.ask(LIST, contract.ListRequest(), CALL_SECONDS))

    def use(self, example: Example, seconds: float = CALL_SECONDS) -> list[ToolAnswer]:
        """What an example's calls give in one episode; without calls, a call of every tool without arguments."""
        episode = uuid.uuid4().hex
        calls = example.calls or tuple(
            ExampleCall(name=one.name.partition(PARTED)[2]) for one in self.tools()
        )
        given = [
            self.client.ask(CALL, tool_call(episode, example, one, f"call-{place}"), seconds)
            for place, one in enumerate(calls)
        ]
        self.client.ask(LEAVE, contract.CloseRequest(episode=episode), seconds)
        return [heard_answer(self.plugin, one) for one in given]

    def fact(self, example: Example, step: int) -> contract.Fact:
        """An example's row as the metrics of a step, of a run that is this subject's own."""
        ident = f"{self.run}/0/{step}"
        return contract.Fact(id=ident, step=step, metrics_json=example.row_json)

    def tell(self, facts: Sequence[contract.Fact], seconds: float = CALL_SECONDS) -> None:
        """Tell a tracker. Raises what a run would note."""
        request = contract.TrackRequest(run_uid=self.run, run_name="checked", facts=facts)
        answer = self.client.ask(TRACK, request, seconds)
        if answer.HasField("failure"):
            raise failure_of(answer.failure)

    def processes(self) -> list[psutil.Process]:
        """The plugin's own, without the two of its keeper; none of one that is ending."""
        pid = self.client.pid
        try:
            runners = [] if pid is None else psutil.Process(pid).children()
            return [one for runner in runners for one in runner.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def close(self) -> None:
        """End the plugin."""
        self.client.close()


def sample(row: Mapping[str, Any], reply: str) -> contract.Sample:
    """One sample of a reward's batch."""
    asked = contract.Message(role="user", parts=[contract.Part(text=str(row.get("prompt", "")))])
    return contract.Sample(prompt=[asked], reply=reply, finish="stop", row_json=json.dumps(row))


def tool_call(
    episode: str, example: Example, call: ExampleCall, call_id: str
) -> contract.CallRequest:
    """One call of a tool."""
    return contract.CallRequest(
        episode=episode,
        call_id=call_id,
        name=call.name,
        arguments_json=json.dumps(call.arguments),
        row_json=example.row_json,
    )


def step(episode: str, turn: int, text: str) -> contract.StepRequest:
    """One reply of an episode."""
    said = contract.Message(role="assistant", parts=[contract.Part(text=text)] if text else [])
    return contract.StepRequest(episode=episode, turn=turn, text=text, message=said)
