"""The tools that ``environment.tools`` names: those that rollout ships, and typed functions of the user's own code.

``module.function`` is a user's; it is imported here, and what it raises is answered to the policy. Names that nobody
knows are refused, as are two tools that the policy could not tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rollout.errors import SpecError
from rollout.plugins.user_code import load_object
from rollout.tools.calculator import calculator
from rollout.tools.code import CodeSource
from rollout.tools.contract import Tool, ToolSource, ToolTraits
from rollout.tools.functions import FunctionTool
from rollout.tools.sandbox.contract import SandboxMaker
from rollout.tools.search import SearchSource
from rollout.turns import ToolSpec
from rollout.types import Row
from rollout_api.checks.tools import SANDBOXED, TOOLS, is_function


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSource:
    """One function, the same for every row."""

    function: Callable[..., object]
    traits: ToolTraits

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the policy will see."""
        return tuple(tool.spec for tool in self.open({}))

    def open(self, row: Row) -> tuple[Tool, ...]:
        """The tool of one episode."""
        del row
        return (FunctionTool(self.function, traits=self.traits),)


def build_sources(names: Sequence[str], folders: Sequence[Path] = ()) -> tuple[ToolSource, ...]:
    """The sources of ``names``, in order; ``folders`` are where user code lies. Raises SpecError."""
    sandboxed = tuple(name for name in names if name in SANDBOXED)
    sources: list[ToolSource] = [CodeSource(sandboxed, bubblewrap)] if sandboxed else []
    sources += [_source(name, folders) for name in names if name not in SANDBOXED]
    _require_apart(sources)
    return tuple(sources)


def tool_digests(specs: Sequence[ToolSpec]) -> dict[str, str]:
    """Digest of what the policy sees of each tool, by its name."""
    return {spec.name: spec.digest for spec in specs}


def require_planned(planned: Mapping[str, str], specs: Sequence[ToolSpec]) -> None:
    """Raise SpecError where the policy would see other tools than the run was planned with."""
    found = tool_digests(specs)
    if changed := sorted(
        name for name in {*planned, *found} if planned.get(name) != found.get(name)
    ):
        raise SpecError(
            f"environment.tools: {', '.join(changed)} is not what the run was planned with (name, description or"
            " arguments changed): put it back, or start a new run"
        )


def _source(name: str, folders: Sequence[Path]) -> ToolSource:
    if name == "calculator":
        return FunctionSource(function=calculator, traits=ToolTraits(pure=True))
    if name == "search":
        return SearchSource()
    if not is_function(name):
        raise SpecError(f"no tool {name!r}; there are {', '.join(TOOLS)}, and module.function")
    module, _, function = name.rpartition(".")
    found = load_object(function, module=module, folders=folders)
    if not callable(found):
        raise SpecError(f"tool {name}: expected a function, got {type(found).__name__}")
    return FunctionSource(function=found, traits=ToolTraits())


def _require_apart(sources: Sequence[ToolSource]) -> None:
    seen: set[str] = set()
    for spec in (spec for source in sources for spec in source.specs):
        if spec.name in seen:
            raise SpecError(f"environment.tools: two tools are called {spec.name!r}; rename one")
        seen.add(spec.name)


@cache
def bubblewrap() -> SandboxMaker:
    """The maker of this process. Raises NoSandbox."""
    from rollout.tools.sandbox.bubblewrap import Bubblewrap

    return Bubblewrap()
