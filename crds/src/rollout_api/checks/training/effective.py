"""The training as it will be: the named presets laid under what the manifest says."""

from __future__ import annotations

from rollout_api.presets import PRESETS, lay_presets, preset_names
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.training.train import Train


def effective_train(spec: RolloutRunSpec) -> Train | None:
    """The training with the named presets under it; an unknown preset is another rule's to tell."""
    if spec.train is None or spec.preset is None:
        return spec.train
    if any(name not in PRESETS for name in preset_names(spec.preset)):
        return spec.train
    written = spec.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    return RolloutRunSpec.model_validate(lay_presets(written, spec.preset)).train
