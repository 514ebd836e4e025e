"""All sources of a run's reward, their weighted sum, and the check that each gave finite numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from rollout.errors import DataError, RewardError, RewardUnavailable, UnscoredRows
from rollout.plugins.user_code import describe_failure
from rollout.rewards.builtins import CANNOT_HANG
from rollout.rewards.host import RewardHost, describe_row
from rollout.rewards.source import RewardSource, load_reward
from rollout.tools.sandbox.chosen import are_elsewhere
from rollout.types import Completion, Message, Row
from rollout_api.checks.environment.tools import SANDBOXED_REWARDS

Scored = tuple[float, dict[str, float]]
"""The weighted sum, and each source's value before weighting; named floats as ``source/name``."""


class InPlace:
    """A builtin that cannot hang, called directly."""

    def __init__(self, source: RewardSource) -> None:
        self.source = source
        self._function = load_reward(source)

    def start(self) -> None:
        """Nothing to start."""

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> Any:
        """What it returned. Raises RewardError."""
        try:
            return self._function(prompts, completions, rows)
        except KeyError as error:
            row = next(i for i, one in enumerate(rows) if _fails(self._function, one))
            raise RewardError(
                f"reward {self.source.name!r} ({self.source.origin}) raised "
                f"{describe_failure(error)}; first for row {row} of the batch, "
                f"{describe_row(rows[row])}"
            ) from error

    def close(self) -> None:
        """Nothing to free."""


def _fails(function: Any, row: Row) -> bool:
    try:
        function([()], [Completion(token_ids=(), logprobs=(), finish="stop")], [row])
    except KeyError:
        return True
    return False


class InSandboxes:
    """The builtin that has what the policy writes run elsewhere, and bounds its time itself.

    Called in this process, which alone may ask for its sandboxes: nothing of what it judges runs in here.
    """

    def __init__(self, source: RewardSource) -> None:
        self.source = source
        self._function = load_reward(source)

    def start(self) -> None:
        """Nothing to start."""

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> Any:
        """What it returned. Raises RewardError for a row without tests, RewardUnavailable for what was not run."""
        try:
            return self._function(prompts, completions, rows)
        except UnscoredRows as error:
            raise RewardUnavailable(self._said(error), tuple(error.rows)) from error
        except DataError as error:
            raise RewardError(self._said(error)) from error

    def _said(self, error: Exception) -> str:
        return (
            f"reward {self.source.name!r} ({self.source.origin}) raised {describe_failure(error)}"
        )

    def close(self) -> None:
        """Nothing to free."""


def _runner(source: RewardSource) -> InPlace | InSandboxes | RewardHost:
    if source.builtin in CANNOT_HANG:
        return InPlace(source)
    if source.builtin in SANDBOXED_REWARDS and are_elsewhere():
        return InSandboxes(source)
    return RewardHost(source)


class RewardPipeline:
    """Scores batches with every source. ``start`` early, ``close`` when done; thread-safe."""

    def __init__(self, sources: Sequence[RewardSource]) -> None:
        self.sources = tuple(sources)
        self._runners = [_runner(source) for source in sources]

    def start(self) -> None:
        """Load every source. Raises SpecError naming the one that cannot be."""
        for runner in self._runners:
            runner.start()

    def score(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> list[Scored]:
        """One weighted sum and its parts per completion, ``completions[i]`` answering ``prompts[i]``.

        Raises RewardError naming source and row when a source raises, hangs, ends its process, or
        returns anything but one finite number (or named finite numbers) per completion. RewardUnavailable
        names the completions that a source could not score for what lies outside of it.
        """
        if not completions:
            return []
        totals = [0.0] * len(completions)
        parts: list[dict[str, float]] = [{} for _ in completions]
        for source, runner in zip(self.sources, self._runners, strict=True):
            values = check_values(source, runner.score(prompts, completions, rows), rows)
            for index, named in enumerate(values):
                totals[index] += source.weight * named[source.name]
                parts[index].update(named)
        return list(zip(totals, parts, strict=True))

    def close(self) -> None:
        """End all child processes; idempotent."""
        for runner in self._runners:
            runner.close()


def check_values(source: RewardSource, values: Any, rows: Sequence[Row]) -> list[dict[str, float]]:
    """Each completion's values under ``source.name``, named ones also as ``source/name``.

    The value of a source that returns named floats is their sum, or the one that counts. Raises RewardError.
    """
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise _bad(source, f"returned {type(values).__name__}, not a list with one number each")
    if len(values) != len(rows):
        raise _bad(source, f"returned {len(values)} values for {len(rows)} completions")
    return [
        _check_value(source, value, row, i)
        for i, (value, row) in enumerate(zip(values, rows, strict=True))
    ]


def _check_value(source: RewardSource, value: Any, row: Row, index: int) -> dict[str, float]:
    if isinstance(value, Mapping):
        named = {f"{source.name}/{key}": _number(source, v, row, index) for key, v in value.items()}
        if not named:
            raise _bad(source, f"returned no named value for row {index}, {describe_row(row)}")
        return {source.name: _counted(source, named), **named}
    return {source.name: _number(source, value, row, index)}


def _counted(source: RewardSource, named: Mapping[str, float]) -> float:
    if source.counts is None:
        return sum(named.values())
    wanted = f"{source.name}/{source.counts}"
    if wanted not in named:
        raise _bad(source, f"returned no value {source.counts!r}, which is its reward")
    return named[wanted]


def _number(source: RewardSource, value: Any, row: Row, index: int) -> float:
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    raise _bad(
        source,
        f"returned {value!r:.60} for row {index}, {describe_row(row)}; expected a finite number",
    )


def _bad(source: RewardSource, problem: str) -> RewardError:
    return RewardError(
        f"reward {source.name!r} ({source.origin}) {problem}. Correct the function: it takes "
        f"(prompts, completions, rows) and returns one float, or named floats, per completion."
    )
