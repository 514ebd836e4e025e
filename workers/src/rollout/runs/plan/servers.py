"""What servers of tools say of them, asked before the process that resolves a run: that one may not start a sandbox."""

from __future__ import annotations

from pathlib import Path

from rollout.turns import ToolSpec
from rollout_api.v1alpha1.run import RolloutRunSpec


def list_servers(spec: RolloutRunSpec) -> dict[str, tuple[ToolSpec, ...]]:
    """The tools of each server that a run names. Raises SpecError for a server that does not list any."""
    environment = spec.train.environment if spec.train else None
    if environment is None or not environment.mcp_servers:
        return {}
    from rollout.tools.sources import build_servers

    folders = [] if spec.code is None or spec.code.path is None else [Path(spec.code.path)]
    return {one.program.name: one.specs for one in build_servers(environment.mcp_servers, folders)}
