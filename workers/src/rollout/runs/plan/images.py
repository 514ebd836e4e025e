"""A run that asks for images of its learner is refused where none can be made, before anything of it starts."""

from __future__ import annotations

import os

from rollout_api.v1alpha1.run import RolloutRunSpec


def images_processes(spec: RolloutRunSpec) -> bool:
    """Whether a run's snapshots may hold an image of its learner."""
    return "Process" in spec.snapshots.include


def require_images_for(spec: RolloutRunSpec) -> None:
    """Try what makes images where the run asks for them. Raises SnapshotRefused saying what is missing."""
    if images_processes(spec):
        from rollout.snapshots.processes.contract import require_support
        from rollout.snapshots.processes.criu import find_criu

        require_support(find_criu(os.environ))
