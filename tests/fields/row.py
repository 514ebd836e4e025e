"""One row of the table of readers, and rows that come up in several places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bases import CONTAINER, JUDGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``consumers`` are tried in turn. ``edits`` change the base by path first, for both sides of the comparison."""

    base: str
    consumers: tuple[str, ...]
    edits: Mapping[str, Any] = field(default_factory=dict)


def row(base: str, *consumers: str, **edits: Any) -> Row:
    """A row; edits are given as ``{"spec.path": value}`` under ``edits``."""
    return Row(base=base, consumers=consumers, edits=edits.get("edits", {}))


GRPO = "spec.train.algorithm.grpo"
PPO = "spec.train.algorithm.ppo"
UNBUILT = row("grpo", "refused")
ENGINE = {"spec.actors": {"engine": {"vllm": {}}}, "spec.numerics": {"mode": "Fast"}}
VLLM = "spec.actors.engine.vllm"
SUITE_DATA = "spec.evaluations[].suite.data"
JUDGE_MODEL = {"uri": "hf://o/judge"}
FROM_RUN = {"fromRun": {"name": "known", "snapshot": "Latest"}}
HUB = {"uri": "hf://o/m"}
OWN_CODE = {"spec.code": {"path": "code"}}
SERVED_ROWS = {"plugin": {"path": "data", "parameters": [{"name": "word", "value": "hey"}]}}
LEDGER = "spec.storage.ledger"
RETAINED = {"sqlite": {}, "retention": {"trajectories": {"steps": 0}}}


def sources(path: str, base: str) -> Iterator[tuple[str, Row]]:
    """A model, by uri, revision or another run."""
    yield path, row(base, "look", edits={path: HUB})
    yield f"{path}.fromRun", row(base, "start", edits={path: FROM_RUN})


PARAMETERS_FROM = (("parametersFrom", "configMapRef"), ("parametersFrom[].secretRef", "secretRef"))


def unbuilt_parameters(
    path: str, base: str, holder: str, plugin: Mapping[str, Any], **edits: Any
) -> Iterator[tuple[str, Row]]:
    """Parameters from objects of the cluster are refused; ``holder`` is edited to ``plugin`` with some."""
    for below, member in PARAMETERS_FROM:
        given = {**plugin, "parametersFrom": [{member: {"name": "c"}}]}
        yield f"{path}.{below}", row(base, "refused", edits={**edits, holder: given})


CALLS = ("batchSize", "concurrency", "retries", "cacheEntries")


def judges(path: str, base: str) -> Iterator[tuple[str, Row]]:
    """A list of rewards: builtins, the user's own, models."""
    one = f"{path}[]"
    yield path, row(base, "scores")
    yield from unbuilt_parameters(f"{one}.builtin", base, f"{one}.builtin", {"name": "exact-match"})
    own = {path: [{"python": JUDGE}], **OWN_CODE}
    yield f"{one}.python", row(base, "scores", edits=own)
    yield (
        f"{one}.python.path",
        row(
            base,
            "scores",
            edits={**own, f"{one}.python": {"path": "my_code.py", "function": "judge"}},
        ),
    )
    yield from unbuilt_parameters(f"{one}.python", base, f"{one}.python", JUDGE, **own)
    looks = ("look", "start") if "train" in path else ("refused", "refused")
    for member, source, consumer in (
        ("model", JUDGE_MODEL, looks[0]),
        ("model.fromRun", FROM_RUN, looks[1]),
    ):
        yield f"{one}.{member}", row(base, consumer, edits={path: [{"model": source}]})
        asked = [{"judge": {"model": HUB if member == "model" else source}}]
        yield f"{one}.judge.{member}", row(base, consumer, edits={path: asked})
    yield f"{one}.judge", row(base, "sources", edits={path: [{"judge": {}}]})
    gated = {"python": JUDGE, "gate": {"atLeast": "0.5", "elseTotal": "-1"}}
    for member in ("gate", "atLeast", "atMost", *CALLS):
        yield f"{one}.{member}", row(base, "sources", edits={path: [gated], **OWN_CODE})
    consumer = "sources" if "train" in path else "refused"
    yield f"{one}.scope", row(base, consumer, edits=own)
    plugin = {"path": "reward", "parameters": [{"name": "word", "value": "hey"}]}
    edits = {path: [{"plugin": plugin}], **OWN_CODE}
    yield f"{one}.plugin", row(base, "plugins", edits=edits)
    contained = {path: [{"plugin": {"container": CONTAINER}}]}
    yield f"{one}.plugin.container", row(base, "children", edits=contained)
    slow = {"python": {"module": "my_code", "function": "slow"}}
    yield f"{one}.timeoutSeconds", row(base, "patience", edits={path: [slow], **OWN_CODE})
