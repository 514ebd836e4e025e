"""From the API's ``environment.agent`` to a builder of its episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollout.environments.agents.environment import AgentBuilder
from rollout.environments.agents.program import AgentProgram, VerifierProgram
from rollout.tools.server_files import read_files
from rollout_api.v1alpha1.environment import Agent


def build_agent(agent: Agent, folders: Sequence[Path]) -> AgentBuilder:
    """The builder; ``folders`` are where the run's code lies. Raises SpecError for a file that is not there."""
    given = agent.verifier
    what = "environment.agent"
    verifier = None
    if given is not None:
        verifier = VerifierProgram(
            command=given.command,
            files=read_files(given.files, folders, f"{what}.verifier"),
            seconds=given.timeout_seconds,
        )
    return AgentBuilder(
        program=AgentProgram(
            command=agent.command,
            files=read_files(agent.files, folders, what),
            verifier=verifier,
            max_turns=agent.max_turns,
            seconds=agent.timeout_seconds,
            memory=agent.memory,
        )
    )
