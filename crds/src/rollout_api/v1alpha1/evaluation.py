"""Measuring a policy: suites, when they run, and what depends on them."""

from typing import ClassVar, Literal

from pydantic import Field

from rollout_api.base import ApiModel, Name, OneOf, Real, filled, many
from rollout_api.v1alpha1.common import Builtin, ModelSource
from rollout_api.v1alpha1.data import Data
from rollout_api.v1alpha1.environment import PluginSource, PythonClass, Reward


class Suite(OneOf):
    """The prompts and how answers are scored."""

    members: ClassVar[tuple[str, ...]] = ("builtin", "data", "python", "plugin")

    builtin: Builtin | None = None
    """One that rollout ships: `arithmetic`, `gsm8k`, `gsm8k-5shot`, `gsm8k-cot-zeroshot`, `ifeval`, `mmlu`, `mmlu-continuation`, `mmlu-generative`, `musique`."""
    data: Data | None = None
    """Rows of one's own, scored by `rewards` and asked as they lie: `shuffle`, `tailBatch` and the fields of pairs and
    labels are refused."""
    python: PythonClass | None = None
    """The user's own suite."""
    plugin: PluginSource | None = None
    """A plugin of kind evaluation, in any language; on one machine only."""
    rewards: tuple[Reward, ...] = many(32)
    """How answers to `data` are scored; a `model` here is refused by this version. Unset: as in training, models
    included."""


class Gate(ApiModel):
    """A bar that the result must pass."""

    metric: Name
    """Name of the metric, such as `accuracy` or `pass@4`."""
    lower_bound: Real = Field(ge=-1_000_000_000, le=1_000_000_000)
    """The low end of the 95 % confidence interval must not be below this."""
    action: Literal["Warn", "StopRun", "StopPromotion"] = filled("Warn")
    """Where the last version misses it: say so in log and outcome, or end the run as failed. `StopPromotion` keeps an
    endpoint at what it serves; refused in runs by this version."""


class SuiteRun(ApiModel):
    """One suite and how it is sampled."""

    name: Name | None = None
    """Its name in metrics and reports. Unset: the builtin's name, else `evaluation-<n>`."""
    suite: Suite
    """What is asked and how it is scored."""
    split: Literal["Selection", "Report"] | None = None
    """Which held-out part: the one that may choose snapshots, or the one that is only reported.
    Unset: Selection when `selects`, else Report."""
    samples_per_prompt: int = filled(1, ge=1, le=4096)
    """Completions per prompt; pass@k is given for k = 1, 2, 4, ... up to this, and for this."""
    temperature: Real = filled(0.0, ge=0, le=100)
    """Sampling temperature; 0 is greedy."""
    max_new_tokens: int | None = Field(default=None, ge=1, le=16_777_216)
    """Longest completion in tokens. Unset: as the suite says, else as in training; 512 in a run that only evaluates."""
    max_prompts: int | None = Field(default=None, ge=1, le=100_000_000)
    """Use the first so many prompts of the split. Unset: all."""
    gate: Gate | None = None
    """A bar. Unset: none."""


class Evaluation(SuiteRun):
    """A suite that runs beside training, on pinned weight versions and with seeds of its own."""

    at_start: bool = filled(default=False)
    """Measure the model before the first step."""
    every_steps: int | None = Field(default=None, ge=1, le=10_000_000)
    """Measure after every so many steps. Unset: only at start and end as asked."""
    at_end: bool = filled(default=True)
    """Measure the last version."""
    selects: bool = filled(default=False)
    """Let this evaluation choose the `Best` snapshot; at most one may."""


class Evaluate(ApiModel):
    """A run that measures a model by `evaluations` and changes nothing."""

    baseline: ModelSource | None = None
    """Another model, measured on the same prompts with the same seeds and compared. Not supported by this version: refused. Unset: none."""
