"""The reward of a plugin, or the scores of its suite, as the process that runs one source of reward loads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rollout.errors import PluginError, UnscoredRows
from rollout.plugins.sidecar.client import SCORE, SUITE_SCORE, PluginClient
from rollout.plugins.sidecar.container import PluginImage
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.manifest import read_plugin
from rollout.plugins.sidecar.wire import heard_numbers, row_json, told_message
from rollout.types import Completion, Message, Row

DEADLINE_SHARE = 0.9
"""Of a batch's time: then it says itself that there was no answer."""


class PluginReward:
    """Built with what ``named.reward_argument`` wrote. Raises SpecError where the plugin does not come up."""

    def __init__(self, plugin: str) -> None:
        told = json.loads(plugin)
        self._seconds = DEADLINE_SHARE * told["timeout_seconds"]
        contained = told.get("container")
        opened = PluginImage(**contained) if contained else read_plugin(Path(told["folder"]))
        self._call = SUITE_SCORE if opened.manifest.kind == "evaluation" else SCORE
        self._client = PluginClient(opened, told["parameters"])
        self._client.start()

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> list[dict[str, float]]:
        """``score`` and the named values of each completion.

        Raises PluginError naming the first row that it failed at, UnscoredRows for what is nobody's doing.
        """
        samples = [
            contract.Sample(
                prompt=[told_message(one) for one in prompt],
                reply=completion.text,
                finish=completion.finish,
                row_json=row_json(row),
            )
            for prompt, completion, row in zip(prompts, completions, rows, strict=True)
        ]
        request = contract.ScoreRequest(samples=samples)
        return heard_scores(self._client.ask(self._call, request, self._seconds), len(rows))


def heard_scores(answer: contract.ScoreResponse, wanted: int) -> list[dict[str, float]]:
    """The scores of a batch, checked."""
    if len(answer.scores) != wanted:
        raise PluginError(f"it gave {len(answer.scores)} scores for {wanted} samples")
    failed = [
        (place, one.failure) for place, one in enumerate(answer.scores) if one.HasField("failure")
    ]
    lost = [place for place, one in failed if one.owner == contract.OWNER_INFRASTRUCTURE]
    for place, failure in failed:
        if place not in lost:
            raise PluginError(f"sample {place} of the batch: {failure.message} ({failure.code})")
    if failed:
        why = f"{len(lost)} of {wanted}: {failed[0][1].message} ({failed[0][1].code})"
        raise UnscoredRows(why, tuple(lost))
    return [heard_numbers({**one.named, "score": one.value}, "score") for one in answer.scores]
