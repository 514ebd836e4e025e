"""Objectives of users: a function and its settings, installed under an entry-point group.

    def gentle(tokens: SurrogateTokens, settings: GentleSettings) -> Tensor: ...

    [project.entry-points."rollout.algorithms"]
    gentle = "my_package.gentle:gentle"

The function returns a loss per token, ``[C]``, or a ``SurrogateLoss``; ``settings`` is annotated with a
pydantic model, whose fields are the manifest's ``parameters``. Everything else of the family (ratio
level, advantages, aggregation, correction, KL, entropy) composes with it as with any objective.
Loading imports the user's code: in the learner, and before in the process that looks at a plan.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from rollout.algorithms.surrogate import Surrogate, SurrogateLoss, SurrogateTokens
from rollout.algorithms.surrogates.clip import bounded_exp
from rollout.errors import RunFailed, SpecError
from rollout.plugins.user_code import refusing_failures

GROUP = "rollout.algorithms"
FIELD = "spec.train.algorithm.grpo.surrogate.custom"

Objective = Callable[[SurrogateTokens, Any], Tensor | SurrogateLoss]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSurrogate:
    """A user's function with its settings, as an objective."""

    name: str
    function: Objective
    settings: BaseModel

    def __call__(self, tokens: SurrogateTokens) -> SurrogateLoss:
        """The loss of every token. Raises RunFailed for a result of another shape."""
        found = self.function(tokens, self.settings)
        losses = found.losses_C if isinstance(found, SurrogateLoss) else found
        if not isinstance(losses, Tensor) or losses.shape != tokens.logprobs_C.shape:
            got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise RunFailed(
                f"algorithm {self.name!r}: expected one loss per token, {tuple(tokens.logprobs_C.shape)},"
                f" got {got}; aggregation happens after it"
            )
        return found if isinstance(found, SurrogateLoss) else _plain(losses, tokens)


def _plain(losses_C: Tensor, tokens: SurrogateTokens) -> SurrogateLoss:
    never = torch.zeros_like(losses_C, dtype=torch.bool)
    return SurrogateLoss(
        losses_C=losses_C,
        ratios_C=bounded_exp(tokens.log_ratios_C.detach()),
        clipped_low_C=never,
        clipped_high_C=never,
    )


def installed_algorithms() -> dict[str, EntryPoint]:
    """What is installed, by name; nothing is imported."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load_algorithm(name: str, parameters: Mapping[str, str]) -> Surrogate:
    """The objective called ``name`` with its settings parsed from text.

    Raises SpecError when it is not installed, cannot be imported, has another signature, or refuses
    a parameter.
    """
    found = installed_algorithms()
    if name not in found:
        listed = ", ".join(sorted(found)) or "none is"
        raise SpecError(
            f"{FIELD}.name: no algorithm {name!r} is installed under the entry-point group {GROUP};"
            f" installed: {listed}. See docs/how-to/write-an-algorithm.md"
        )
    function = _import(found[name])
    model = _settings_model(name, function)
    return UserSurrogate(
        name=name, function=function, settings=_parse(name, model, dict(parameters))
    )


def _import(point: EntryPoint) -> Objective:
    with refusing_failures(f"{FIELD}.name: {point.value} cannot be imported"):
        return point.load()


def _settings_model(name: str, function: Objective) -> type[BaseModel]:
    """The annotation of the second argument."""
    wanted = f"{FIELD}.name: {name!r} must be a function (tokens, settings: a pydantic model)"
    if not callable(function):
        raise SpecError(f"{wanted}, got {type(function).__name__}")
    names = list(inspect.signature(function).parameters)
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise SpecError(f"{wanted}; its annotations do not resolve: {error}") from error
    model = hints.get(names[1]) if len(names) == 2 else None
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise SpecError(f"{wanted}, got arguments ({', '.join(names)}) with settings {model}")
    return model


def _parse(name: str, model: type[BaseModel], given: dict[str, Any]) -> BaseModel:
    known = {field.alias or key for key, field in model.model_fields.items()}
    if unknown := sorted(set(given) - known):
        listed = ", ".join(sorted(known)) or "none"
        raise SpecError(f"{FIELD}.parameters: {name!r} has no {unknown[0]!r}; it takes {listed}")
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "settings"
        raise SpecError(f"{FIELD}.parameters: {name!r}, {place}: {first['msg']}") from error
