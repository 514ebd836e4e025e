"""Batch inference: rows in, completions, vectors or scores out."""

from typing import Literal

from pydantic import Field

from rollout_api.base import ApiModel, Real, filled
from rollout_api.v1alpha1.data import Data, Output
from rollout_api.v1alpha1.inference.sampling import Sampling


class Infer(ApiModel):
    """Answer every row once and write the results in row order."""

    task: Literal["Generate", "Embed", "Score"] = filled("Generate")
    """What a row gets: completions, the model's vector of its text, or the number that a reward model gives its answer. With `Embed` and `Score` nothing is sampled: `sampling`, `samplesPerPrompt` and `logprobs` are refused, and so are engines that only write."""
    data: Data
    """The prompts that are completed, each once and in order: what serves training only (order, shares, other fields of a row) is refused, and so are data sets of the hub."""
    output: Output | None = None
    """Where completions go: a folder on one machine, or `s3://bucket/prefix`. Unset: the run's own storage."""
    sampling: Sampling = filled(default_factory=Sampling)
    """How completions are drawn; nothing is refused here."""
    samples_per_prompt: int = filled(1, ge=1, le=4096)
    """Completions of each row."""
    max_prompts: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Stop after so many rows. Unset: all."""
    logprobs: bool = filled(default=False)
    """Write the logprob of every sampled token too."""
    max_failed_ratio: Real = filled(0.1, ge=0, le=1)
    """Share of rows that may have an error instead of completions; the run fails above it, its results written."""
