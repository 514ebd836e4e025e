"""Questions over several paragraphs (MuSiQue, Trivedi et al. 2022, arXiv:2108.00573), all paragraphs in the prompt.

Rows have the data set's fields: ``question``, ``answer``, ``answer_aliases`` and ``paragraphs`` with ``title`` and
``paragraph_text``. There is no official copy on the hub: name a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollout.common.parameters import parse_parameters
from rollout.data.rows.mapping import FieldMapping
from rollout.data.subset import read_all
from rollout.environments.single_turn import SingleTurnBuilder
from rollout.errors import DataError
from rollout.evaluations.builtin.rows import AskedSource, as_prompt, open_rows, take_part
from rollout.evaluations.metrics import Metric
from rollout.evaluations.suites import Context, Suite, SuiteSampling
from rollout.rewards.source import RewardSource
from rollout.seams import DataSource
from rollout.types import Row

ASKED = (
    "Answer the question from the paragraphs. Think if you need to, then end with one line that says"
    " Answer: and the answer in as few words as possible."
)
NEW_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Musique:
    """Parameters: ``uri``, a JSONL file of the data set's own fields."""

    uri: str


def build_musique(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """Correct at a token F1 of at least 0.5; ``em`` and ``f1`` are measured beside it."""
    parameters = parse_parameters(f"suite {name}", Musique, given)
    scorer = RewardSource(
        name="musique",
        module="rollout.evaluations.scoring.musique",
        function="MusiqueScore",
        counts="f1",
    )
    return Suite(
        name=name,
        split=context.split,
        environment=SingleTurnBuilder,
        rewards=(scorer,),
        source=lambda: open_musique(parameters, context),
        sampling=SuiteSampling(max_new_tokens=NEW_TOKENS),
        metrics=[Metric(name=one, part=f"musique/{one}") for one in ("em", "f1", "cut")],
    )


def open_musique(parameters: Musique, context: Context) -> DataSource:
    """The answerable questions with their paragraphs. Raises DataError naming what a row lacks."""
    mapping = FieldMapping(prompt_field="question", answer_field="answer")
    whole = open_rows(parameters.uri, None, mapping, context, "suite musique")
    for row in read_all(whole):
        ask(row)
    return AskedSource(
        take_part(whole, context, None), lambda _, row: as_prompt(ask(row)), "musique"
    )


def ask(row: Row) -> str:
    """The prompt. Raises DataError."""
    paragraphs = row.get("paragraphs")
    if not isinstance(paragraphs, list) or not all(
        isinstance(one, Mapping) and {"title", "paragraph_text"} <= one.keys() for one in paragraphs
    ):
        raise DataError(
            f"suite musique: expected paragraphs with title and paragraph_text for {str(row['question'])[:60]!r}"
        )
    listed = "\n\n".join(f"{one['title']}\n{one['paragraph_text']}" for one in paragraphs)
    return f"{ASKED}\n\n{listed}\n\nQuestion: {row['question']}"
