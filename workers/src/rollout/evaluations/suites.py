"""The suites: rows of one split, the environment they are played in, and how answers are scored.

The coordinator takes the rows, the actors the rest. Nothing is started here; the builtins are
``arithmetic`` (the environment's own held-out problems) and ``gsm8k`` (Cobbe et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollout.common.parameters import parse_parameters
from rollout.data.files import find_files
from rollout.data.hugging_face import DatasetName, open_dataset
from rollout.data.jsonl import open_jsonl
from rollout.data.mapping import FieldMapping
from rollout.data.subset import Part, split_source
from rollout.environments.arithmetic import Arithmetic, ArithmeticBuilder
from rollout.environments.single_turn import SingleTurnBuilder
from rollout.models.files import default_cache_dir
from rollout.rewards.source import RewardSource
from rollout.seams import DataSource, EnvBuilder

GSM8K_PROMPT = "Reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One evaluation's question paper.

    ``source`` opens the rows of the wanted split (lazily: only the coordinator reads them);
    ``rewards`` score the answers, at least 0.5 meaning correct.
    """

    name: str
    split: Part
    environment: EnvBuilder
    rewards: Sequence[RewardSource]
    source: Callable[[], DataSource]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a suite may take from its run: where to look, and what training does.

    ``environment`` holds the parameters of the training's builtin environment of the same name,
    ``models`` the folders of reward models by role.
    """

    split: Part
    seed: int = 0
    base_dir: Path = field(default_factory=Path)
    environment: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, Path] = field(default_factory=dict)


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


def build_arithmetic(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """The held-out problems of the training's difficulty, or of the one given."""
    merged = {**context.environment, **given}
    builder = ArithmeticBuilder(
        parameters=parse_parameters(f"suite {name}", Arithmetic, merged),
    )
    return Suite(
        name=name,
        split=context.split,
        environment=builder,
        rewards=(RewardSource(name="exact-match", builtin="exact-match"),),
        source=lambda: builder.source(context.split, context.seed),
    )


def build_gsm8k(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """Grade-school problems, the answer judged as mathematics."""
    parameters = parse_parameters(f"suite {name}", Gsm8k, given)
    boxed = {"requireBoxed": str(parameters.require_boxed).lower()}
    return Suite(
        name=name,
        split=context.split,
        environment=SingleTurnBuilder(),
        rewards=(RewardSource(name="math-verify", builtin="math-verify", parameters=boxed),),
        source=lambda: open_gsm8k(parameters, context),
    )


def open_gsm8k(parameters: Gsm8k, context: Context) -> DataSource:
    """The rows of one split. Raises DataError when the file, or the hub's copy, is not there."""
    mapping = FieldMapping(
        prompt_field="question",
        answer_field="answer",
        system_prompt=parameters.system_prompt or None,
    )
    if parameters.uri:
        paths = find_files(parameters.uri, context.base_dir, default_cache_dir())
        whole: DataSource = open_jsonl(paths, mapping)
    else:
        whole = open_dataset(DatasetName(path="openai/gsm8k", name="main", split="test"), mapping)
    return split_source(whole, 1.0, context.split, selection_share=parameters.selection_share)


BUILTINS: Mapping[str, Callable[[str, Mapping[str, str], Context], Suite]] = {
    "arithmetic": build_arithmetic,
    "gsm8k": build_gsm8k,
}
"""Suites by name."""
