"""Grade-school mathematics (Cobbe et al. 2021, arXiv:2110.14168), asked in three ways.

``gsm8k`` asks for a boxed answer and judges it as mathematics; ``gsm8k-5shot`` and ``gsm8k-cot-zeroshot`` ask and score as
the tasks ``gsm8k`` and ``gsm8k_cot_zeroshot`` of lm-evaluation-harness do.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollout.common.parameters import parse_parameters
from rollout.data.hugging_face import DatasetName
from rollout.data.rows.mapping import FieldMapping
from rollout.data.subset import read_all
from rollout.environments.single_turn import SingleTurnBuilder
from rollout.errors import DataError
from rollout.evaluations.builtin.rows import AskedSource, as_prompt, open_rows, take_part
from rollout.evaluations.metrics import Metric
from rollout.evaluations.scoring.gsm8k import STYLES, Style
from rollout.evaluations.suites import Context, Suite, SuiteSampling
from rollout.rewards.source import RewardSource
from rollout.seams import DataSource
from rollout.types import Row

GSM8K_PROMPT = "Reason step by step, and put your final answer within \\boxed{}."
HUB = "openai/gsm8k"
SHOTS_SEED = 1234
"""The harness draws examples with this seed, question by question in the order of the data."""
NEW_TOKENS = 256
"""The harness's own default for what its model generates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gsm8k:
    """Parameters of ``gsm8k``.

    ``uri`` is a JSONL file with ``question`` and ``answer``; empty takes ``openai/gsm8k`` of the hub.
    A fifth of the test set may select snapshots, the rest is reported. An empty ``system_prompt``
    leaves it out; ``require_boxed`` counts boxed answers only.
    """

    uri: str = ""
    system_prompt: str = GSM8K_PROMPT
    require_boxed: bool = False
    selection_share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.selection_share < 1:
            raise ValueError("selectionShare: expected a share above 0 and below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessGsm8k:
    """Parameters of the harness's ways: ``uri`` as in ``gsm8k``, ``shots_uri`` a file of worked examples; empty: the hub's."""

    uri: str = ""
    shots_uri: str = ""


def build_gsm8k(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """Grade-school problems, the answer judged as mathematics."""
    parameters = parse_parameters(f"suite {name}", Gsm8k, given)
    boxed = {"requireBoxed": str(parameters.require_boxed).lower()}
    return Suite(
        name=name,
        split=context.split,
        environment=SingleTurnBuilder,
        rewards=(RewardSource(name="math-verify", builtin="math-verify", parameters=boxed),),
        source=lambda: open_gsm8k(parameters, context),
    )


def open_gsm8k(parameters: Gsm8k, context: Context) -> DataSource:
    """The rows of one split. Raises DataError when the file, or the hub's copy, is not there."""
    mapping = _mapping(parameters.system_prompt or None)
    hub = DatasetName(path=HUB, name="main", split="test")
    whole = open_rows(parameters.uri, hub, mapping, context, "suite gsm8k")
    return take_part(whole, context, parameters.selection_share)


def build_gsm8k_5shot(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """Five worked examples before each question."""
    return _harness(name, "harness", given, context)


def build_gsm8k_cot_zeroshot(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """No example, and an answer that begins with a thought."""
    return _harness(name, "cot-zeroshot", given, context)


def _harness(name: str, style: str, given: Mapping[str, str], context: Context) -> Suite:
    parameters = parse_parameters(f"suite {name}", HarnessGsm8k, given)
    scorer = RewardSource(
        name="gsm8k",
        module="rollout.evaluations.scoring.gsm8k",
        function="Gsm8kScore",
        parameters={"style": style},
        counts="flexible",
    )
    return Suite(
        name=name,
        split=context.split,
        environment=SingleTurnBuilder,
        rewards=(scorer,),
        source=lambda: _open_harness(STYLES[style], style, parameters, context),
        sampling=SuiteSampling(stop=STYLES[style].stop, max_new_tokens=NEW_TOKENS),
        metrics=[
            Metric(name=one, part=f"gsm8k/{one}")
            for one in ("strict", "flexible", "numeric", "invalid", "cut")
        ],
    )


def _open_harness(
    style: Style, name: str, parameters: HarnessGsm8k, context: Context
) -> DataSource:
    hub = DatasetName(path=HUB, name="main", split="test")
    whole = open_rows(parameters.uri, hub, _mapping(), context, f"suite gsm8k ({name})")
    part = take_part(whole, context, None)
    if not style.num_shots:
        return AskedSource(part, lambda _, row: as_prompt(ask(style, row, ())), name)
    shots = _Shots(style, _open_shots(parameters, context), len(whole))
    return AskedSource(
        part,
        lambda place, row: as_prompt(ask(style, row, shots.of(place))),
        f"{name}/{shots.digest}",
    )


def _open_shots(parameters: HarnessGsm8k, context: Context) -> DataSource:
    if parameters.uri and not parameters.shots_uri:
        raise DataError(
            "suite gsm8k: uri names the questions; name a file of worked examples with shotsUri, such as"
            " the training split"
        )
    hub = DatasetName(path=HUB, name="main", split="train")
    return open_rows(parameters.shots_uri, hub, _mapping(), context, "suite gsm8k, its examples")


def _mapping(system_prompt: str | None = None) -> FieldMapping:
    return FieldMapping(prompt_field="question", answer_field="answer", system_prompt=system_prompt)


class _Shots:
    """Which examples stand before which question: drawn anew for each, as the harness draws."""

    def __init__(self, style: Style, source: DataSource, num_questions: int) -> None:
        if len(source) < style.num_shots:
            raise DataError(
                f"suite gsm8k: {style.num_shots} worked examples are shown, the file has {len(source)}"
            )
        self.digest = source.digest
        self._examples = list(read_all(source))
        draw = random.Random(SHOTS_SEED)
        places = range(len(source))
        self._drawn = [draw.sample(places, style.num_shots) for _ in range(num_questions)]

    def of(self, question: int) -> Sequence[Row]:
        """The examples of a question, by its place in the whole data."""
        return [self._examples[place] for place in self._drawn[question]]


def ask(style: Style, row: Row, shots: Sequence[Row]) -> str:
    """The prompt: worked examples, an empty line between them, and the question."""
    shown = [f"{_question(style, shot)} {shot['answer']}\n\n" for shot in shots]
    return "".join([*shown, _question(style, row)])


def _question(style: Style, row: Row) -> str:
    return style.question.replace("{question}", str(row["question"]))
