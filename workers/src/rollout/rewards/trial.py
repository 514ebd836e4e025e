"""Loads rewards once and lets go of them: what cannot be loaded is known before a sample is paid for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rollout.rewards.host import RewardHost
from rollout.rewards.source import RewardSource
from rollout_api.fields.credentials import names_credential
from rollout_api.v1alpha1.run import RolloutRunSpec


def load_once(sources: Iterable[RewardSource], environment: Mapping[str, str]) -> None:
    """Import the user's code in a child process for each source, within the host's own deadline, and end it.

    Raises SpecError naming the source and the user's own line.
    """
    for source in sources:
        if source.builtin is not None:
            continue
        host = RewardHost(source, environment)
        try:
            host.start()
        finally:
            host.close()


def without_credentials(ours: Mapping[str, str], spec: RolloutRunSpec) -> dict[str, str]:
    """Our variables but for credentials that the manifest does not give to its own code."""
    mine = [one for one in spec.env if one.goes_to("Actor")]
    given = {one.name for one in mine}
    kept = {
        name: value for name, value in ours.items() if name in given or not names_credential(name)
    }
    return {**kept, **{one.name: one.value or "" for one in mine if one.secret is None}}
