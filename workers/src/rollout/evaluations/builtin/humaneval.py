"""Functions in Python from their description (HumanEval, Chen et al. 2021, arXiv:2107.03374), run against their tests.

Rows have the data set's fields: ``task_id``, ``prompt`` (a function's beginning with its description), ``entry_point``
and ``test``. The reply is run in a sandbox (``rollout.rewards.code_tests``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollout.common.parameters import parse_parameters
from rollout.data.hugging_face import DatasetName
from rollout.data.rows.mapping import FieldMapping
from rollout.data.subset import read_all
from rollout.environments.single_turn import SingleTurnBuilder
from rollout.errors import DataError
from rollout.evaluations.builtin.rows import AskedSource, as_prompt, open_rows, take_part
from rollout.evaluations.metrics import Metric
from rollout.evaluations.suites import Context, Suite, SuiteSampling
from rollout.rewards.code_tests.tasks import read_task
from rollout.rewards.source import RewardSource
from rollout.seams import DataSource
from rollout.types import Row

HUB = DatasetName(path="openai/openai_humaneval", split="test")
REWARD = "code-tests"
NEW_TOKENS = 1024
SECONDS = 600.0
"""For one batch of answers."""
STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Where a function has ended, as lm-evaluation-harness has it."""
STYLES = ("instruct", "complete")
ASKED = (
    "Complete this Python function so that it does what its description says. Reply with the whole function, and what"
    " it imports, in one block of code.\n\n```python\n{prompt}```"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Humaneval:
    """Parameters: ``uri``, a JSONL file of the data set's fields (empty: the hub's); ``style``, how it is asked.

    ``instruct`` asks for the whole function in a block, ``complete`` shows its beginning alone.
    """

    uri: str = ""
    style: str = "instruct"

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ValueError(f"style: expected {' or '.join(STYLES)}, got {self.style!r}")


def build_humaneval(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """Correct when all tests of a function pass; ``share`` is how many did, ``time`` how many were late."""
    parameters = parse_parameters(f"suite {name}", Humaneval, given)
    scorer = RewardSource(
        name=REWARD,
        builtin=REWARD,
        counts="score",
        timeout_seconds=SECONDS,
        parameters={"deadlineSeconds": f"{0.9 * SECONDS:g}"},
    )
    completes = parameters.style == "complete"
    return Suite(
        name=name,
        split=context.split,
        environment=SingleTurnBuilder,
        rewards=(scorer,),
        source=lambda: open_humaneval(parameters, context),
        sampling=SuiteSampling(stop=STOP if completes else (), max_new_tokens=NEW_TOKENS),
        metrics=[Metric(name=one, part=f"{REWARD}/{one}") for one in ("share", "time")],
    )


def open_humaneval(parameters: Humaneval, context: Context) -> DataSource:
    """The functions that are asked for. Raises DataError naming what a row lacks."""
    whole = open_rows(parameters.uri, HUB, FieldMapping(), context, "suite humaneval")
    for row in read_all(whole):
        if not {"prompt", "test", "entry_point"} <= row.keys():
            raise DataError(
                f"suite humaneval: expected prompt, test and entry_point, got {', '.join(map(repr, row))}"
            )
        read_task(row, "tests")
    part = take_part(whole, context, None)
    return AskedSource(
        part, lambda _, row: _asked(row, parameters), f"humaneval/{parameters.style}"
    )


def _asked(row: Row, parameters: Humaneval) -> dict[str, Any]:
    begin = str(row["prompt"])
    text = begin if parameters.style == "complete" else ASKED.format(prompt=begin)
    return {**as_prompt(text), "code_prompt": begin}
