"""Massive multitask multiple choice (Hendrycks et al. 2021, arXiv:2009.03300), asked as lm-evaluation-harness asks.

Rows are those of ``cais/mmlu``: ``question``, ``subject``, four ``choices`` and ``answer`` (0 to 3, or a letter).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from rollout.evaluations.scoring.mmlu import LETTERS, STOP, ask, describe
from rollout.evaluations.suites import Context, Suite, SuiteSampling
from rollout.rewards.source import RewardSource
from rollout.seams import DataSource
from rollout.types import Row

HUB = "cais/mmlu"
NEW_TOKENS = 256
SHOTS_MAX = 5
"""What the data set has of each subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mmlu:
    """Parameters: ``uri`` the questions, ``shots_uri`` the examples (of the same fields), ``shots`` how many are shown.

    Empty: ``cais/mmlu`` of the hub. ``subject`` asks only one. The harness shows no example unless told to; 5 is the custom.
    """

    uri: str = ""
    shots_uri: str = ""
    shots: int = 0
    subject: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.shots <= SHOTS_MAX:
            raise ValueError(f"shots: expected 0..{SHOTS_MAX}")


def build_mmlu_generative(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """The letter is generated, and read from the first line of the reply."""
    parameters = parse_parameters(f"suite {name}", Mmlu, given)
    scorer = RewardSource(
        name="mmlu",
        module="rollout.evaluations.scoring.mmlu",
        function="MmluScore",
        counts="exact",
    )
    return Suite(
        name=name,
        split=context.split,
        environment=SingleTurnBuilder,
        rewards=(scorer,),
        source=lambda: open_mmlu(parameters, context),
        sampling=SuiteSampling(stop=STOP, max_new_tokens=NEW_TOKENS),
        metrics=[Metric(name=one, part=f"mmlu/{one}") for one in ("exact", "invalid", "cut")],
    )


def open_mmlu(parameters: Mmlu, context: Context) -> DataSource:
    """The questions, each under its subject's description and examples. Raises DataError."""
    shots = _open_shots(parameters, context) if parameters.shots else {}
    name = parameters.subject or "all"
    hub = DatasetName(path=HUB, name=name, split="test")
    whole = open_rows(parameters.uri, hub, _MAPPING, context, "suite mmlu")
    for row in read_all(whole):
        read_question(row)
    part = take_part(whole, context, None)
    return AskedSource(
        part,
        lambda _, row: _asked(row, shots, parameters.shots),
        f"mmlu/{parameters.shots}/{name}",
    )


_MAPPING = FieldMapping(prompt_field="question")


def _open_shots(parameters: Mmlu, context: Context) -> dict[str, list[Row]]:
    if parameters.uri and not parameters.shots_uri:
        raise DataError(
            "suite mmlu: shots are shown: name their file with shotsUri, or set shots: 0"
        )
    hub = DatasetName(path=HUB, name=parameters.subject or "all", split="dev")
    found: dict[str, list[Row]] = {}
    source = open_rows(parameters.shots_uri, hub, _MAPPING, context, "suite mmlu, its examples")
    for row in read_all(source):
        found.setdefault(str(row["subject"]), []).append(row)
    return found


def _asked(row: Row, shots: Mapping[str, Sequence[Row]], num_shots: int) -> dict[str, Any]:
    subject, question, letter = read_question(row)
    own = shots.get(subject, ())[:num_shots]
    if len(own) < num_shots:
        raise DataError(f"suite mmlu: {num_shots} examples are shown, {subject} has {len(own)}")
    shown = [f"{text} {right}\n\n" for _, text, right in map(read_question, own)]
    return {**as_prompt("".join([describe(subject), *shown, question])), "answer": letter}


def read_question(row: Row) -> tuple[str, str, str]:
    """Subject, question with choices, and the right letter. Raises DataError naming what a row lacks."""
    choices, answer = row.get("choices"), row.get("answer")
    if not isinstance(choices, list) or len(choices) != len(LETTERS) or "subject" not in row:
        raise DataError(
            f"suite mmlu: expected subject and four choices for {str(row.get('question'))[:60]!r}"
        )
    letter = str(answer) if str(answer) in tuple(LETTERS) else _letter(answer)
    if letter is None:
        raise DataError(f"suite mmlu: answer is {answer!r}, expected 0 to 3 or A to D")
    return str(row["subject"]), ask(str(row["question"]), [str(one) for one in choices]), letter


def _letter(answer: object) -> str | None:
    try:
        place = int(str(answer))
    except ValueError:
        return None
    return LETTERS[place] if 0 <= place < len(LETTERS) else None
