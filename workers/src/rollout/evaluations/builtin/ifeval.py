"""Following verifiable instructions (Zhou et al. 2023, arXiv:2311.07911), asked and counted as lm-evaluation-harness does.

Rows are those of ``google/IFEval``: ``prompt``, ``instruction_id_list`` and ``kwargs``. A prompt is right when every
instruction is followed strictly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollout.common.parameters import parse_parameters
from rollout.data.hugging_face import DatasetName
from rollout.data.rows.mapping import FieldMapping
from rollout.data.subset import read_all
from rollout.environments.single_turn import SingleTurnBuilder
from rollout.errors import DataError
from rollout.evaluations.builtin.rows import open_rows, take_part
from rollout.evaluations.metrics import Metric
from rollout.evaluations.scoring.ifeval.score import read_instructions
from rollout.evaluations.suites import Context, Suite, SuiteSampling
from rollout.rewards.source import RewardSource
from rollout.seams import DataSource

HUB = DatasetName(path="google/IFEval", split="train")
NEW_TOKENS = 1280


@dataclass(frozen=True, slots=True, kw_only=True)
class Ifeval:
    """Parameters: ``uri``, a JSONL file of the data set's fields; empty takes ``google/IFEval`` of the hub."""

    uri: str = ""


def build_ifeval(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """Prompt and instruction level, strict and loose."""
    parameters = parse_parameters(f"suite {name}", Ifeval, given)
    scorer = RewardSource(
        name="ifeval",
        module="rollout.evaluations.scoring.ifeval.score",
        function="IfevalScore",
        counts="prompt_strict",
    )
    metrics = [Metric(name=one, part=f"ifeval/{one}") for one in ("prompt_strict", "prompt_loose")]
    metrics += [
        Metric(name=one, part=f"ifeval/{one}", of="ifeval/instructions")
        for one in ("inst_strict", "inst_loose")
    ]
    return Suite(
        name=name,
        split=context.split,
        environment=SingleTurnBuilder,
        rewards=(scorer,),
        source=lambda: open_ifeval(parameters, context),
        sampling=SuiteSampling(max_new_tokens=NEW_TOKENS),
        metrics=[*metrics, Metric(name="cut", part="ifeval/cut")],
    )


def open_ifeval(parameters: Ifeval, context: Context) -> DataSource:
    """The prompts as they lie. Raises DataError naming a prompt whose instructions cannot be checked."""
    whole = open_rows(parameters.uri, HUB, FieldMapping(), context, "suite ifeval")
    for row in read_all(whole):
        try:
            read_instructions(row)
        except ValueError as error:
            raise DataError(f"suite ifeval, prompt {row['prompt'][:60]!r}: {error}") from error
    return take_part(whole, context, None)
