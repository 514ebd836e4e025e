"""From the API's ``train.environment`` to an EnvBuilder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rollout.common.parameters import given_parameters, parse_parameters
from rollout.environments.arithmetic import Arithmetic, ArithmeticBuilder
from rollout.environments.code import CodeBuilder, CodeParameters
from rollout.environments.musique_search import MusiqueSearchBuilder, MusiqueSearchParameters
from rollout.environments.plugin import wrap_class
from rollout.environments.single_turn import SingleTurnBuilder
from rollout.environments.treasure_hunt import TreasureHunt, TreasureHuntBuilder
from rollout.environments.with_tools import add_tools
from rollout.errors import SpecError
from rollout.plugins.user_code import load_object
from rollout.seams import EnvBuilder
from rollout_api.v1alpha1.environment import Environment, PythonClass


def _arithmetic(given: Mapping[str, str]) -> EnvBuilder:
    what = "environment arithmetic"
    return ArithmeticBuilder(parameters=parse_parameters(what, Arithmetic, given))


def _code(given: Mapping[str, str]) -> EnvBuilder:
    return CodeBuilder(parameters=parse_parameters("environment code", CodeParameters, given))


def _musique_search(given: Mapping[str, str]) -> EnvBuilder:
    what = "environment musique-search"
    return MusiqueSearchBuilder(parameters=parse_parameters(what, MusiqueSearchParameters, given))


def _single_turn(given: Mapping[str, str]) -> EnvBuilder:
    return parse_parameters("environment single-turn", SingleTurnBuilder, given)


def _treasure_hunt(given: Mapping[str, str]) -> EnvBuilder:
    what = "environment treasure-hunt"
    return TreasureHuntBuilder(parameters=parse_parameters(what, TreasureHunt, given))


BUILTINS: Mapping[str, Callable[[Mapping[str, str]], EnvBuilder]] = {
    "arithmetic": _arithmetic,
    "code": _code,
    "musique-search": _musique_search,
    "single-turn": _single_turn,
    "treasure-hunt": _treasure_hunt,
}

PARAMETERS: Mapping[str, type] = {
    "arithmetic": Arithmetic,
    "code": CodeParameters,
    "musique-search": MusiqueSearchParameters,
    "single-turn": SingleTurnBuilder,
    "treasure-hunt": TreasureHunt,
}
"""What each builtin takes: a dataclass."""
EXPLAINED: Mapping[str, str] = {
    "arithmetic": "problems without end, some of them held out for ever; brings its own rows",
    "code": "programs in several attempts, told what the shown tests say; rows with hidden tests",
    "musique-search": "questions over several documents, found with search and read; rows in MuSiQue's form",
    "single-turn": "one question of the data, one answer",
    "treasure-hunt": "a text game in a house seen room by room; brings its own rows, some held out for ever",
}


def build_environment(
    environment: Environment | None, *, folders: Sequence[Path] = ()
) -> EnvBuilder:
    """The environment of a run; None means ``single-turn``.

    ``folders`` are where user code lies. Raises SpecError.
    """
    if environment is None:
        return SingleTurnBuilder()
    return add_tools(_build_plain(environment, folders), environment, folders)


def _build_plain(environment: Environment, folders: Sequence[Path]) -> EnvBuilder:
    if environment.builtin is not None:
        name = environment.builtin.name
        if name not in BUILTINS:
            raise SpecError(f"no environment {name!r}; there are {', '.join(sorted(BUILTINS))}")
        return BUILTINS[name](given_parameters(f"environment {name}", environment.builtin))
    if environment.plugin is not None:
        from rollout.plugins.sidecar.kinds.environment import SidecarBuilder
        from rollout.plugins.sidecar.named import open_plugin, parameters_of

        source = environment.plugin
        plugin = open_plugin(source, "environment", folders, "environment.plugin")
        return SidecarBuilder(plugin, parameters_of(source))
    if environment.agent is not None:
        from rollout.environments.agents.build import build_agent

        return build_agent(environment.agent, folders)
    assert environment.python is not None
    return _build_plugin(environment.python, folders)


def _build_plugin(python: PythonClass, folders: Sequence[Path]) -> EnvBuilder:
    what = f"environment {python.module}.{python.class_name}"
    found = load_object(python.class_name, module=python.module, folders=folders)
    return wrap_class(found, given_parameters(what, python), what)
