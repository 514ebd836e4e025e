"""A run whose tools, rewards or suites run what the policy writes is refused where this machine cannot keep that in."""

from __future__ import annotations

from rollout_api.checks.environment.tools import SANDBOXED, find_sandboxed
from rollout_api.v1alpha1.run import RolloutRunSpec


def require_sandbox_for(spec: RolloutRunSpec) -> None:
    """Try a sandbox where the run needs one. Raises NoSandbox saying what is missing."""
    environment = spec.train.environment if spec.train else None
    tools = environment is not None and (
        environment.mcp_servers or SANDBOXED.intersection(environment.tools)
    )
    if tools or any(find_sandboxed(spec)):
        from rollout.tools.sandbox.trial import require_sandbox

        require_sandbox()
