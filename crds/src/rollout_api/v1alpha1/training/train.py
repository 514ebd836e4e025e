"""Training: the algorithm and everything around it that shapes the optimization."""

from typing import ClassVar, Literal

from pydantic import Field

from rollout_api.base import ApiModel, OneOf, Real, Rule, filled, many
from rollout_api.v1alpha1.common import ModelSource
from rollout_api.v1alpha1.data import Data, ModelOutput
from rollout_api.v1alpha1.environment import Environment, Reward
from rollout_api.v1alpha1.inference.sampling import Sampling
from rollout_api.v1alpha1.training.algorithms import Algorithm
from rollout_api.v1alpha1.training.optimizer import AdamW, Constant, Optimizer, Schedule


class TokenTruncated(ApiModel):
    """Weigh each token's loss by min(cap, learner probability / actor probability)."""

    cap: Real = filled(2.0, gt=0, le=1000)
    """Largest weight (verl, SkyRL: 2)."""


class SequenceTruncated(ApiModel):
    """Weigh each completion's loss by min(cap, product of the token ratios)."""

    cap: Real = filled(2.0, gt=0, le=1000)
    """Largest weight that a completion may get."""


class TokenMasked(ApiModel):
    """Drop tokens whose ratio lies outside the bounds (IcePop); the others keep it as their weight."""

    low: Real = filled(0.5, ge=0, le=1)
    """Smallest ratio that counts."""
    high: Real = filled(5.0, ge=1, le=1000)
    """Largest ratio that counts."""


class SequenceMasked(ApiModel):
    """Drop completions whose ratio, the product over their tokens, lies outside the bounds."""

    low: Real = filled(0.0, ge=0, le=1)
    """Smallest ratio that counts."""
    high: Real = filled(3.0, ge=1, le=1000)
    """Largest ratio that counts (TRL: 3)."""


class NoCorrection(ApiModel):
    """Take the actors' tokens as the learner's own."""


class ImportanceSampling(OneOf):
    """Correction for tokens that another engine, or an older policy, sampled."""

    token_truncated: TokenTruncated | None = None
    """Per token, truncated; the default whenever the engine is not the learner's own forward."""
    sequence_truncated: SequenceTruncated | None = None
    """One weight for each completion, truncated."""
    token_masked: TokenMasked | None = None
    """Per token, dropped outside bounds."""
    sequence_masked: SequenceMasked | None = None
    """Per completion, dropped outside bounds."""
    none: NoCorrection | None = None
    """No correction: every weight is one."""


class DynamicSampling(ApiModel):
    """Drop groups whose rewards are all equal and refill the batch in data order (DAPO)."""

    generation_waves_max: int = filled(3, ge=1, le=64)
    """Refills per step, the first one included; after the last the step is short."""


class OverlongPenalty(ApiModel):
    """Soft penalty for completions near the token limit (DAPO).

    Taken before advantages; recorded rewards, evaluations and `dynamicSampling` do not see it.
    """

    buffer_tokens: int | None = Field(default=None, ge=1, le=16_777_216)
    """Length of the zone before `sampling.maxNewTokens` in which the penalty grows. Unset: a fifth of
    it (DAPO: 4096 of 20480)."""
    penalty: Real = filled(1.0, ge=0, le=1_000_000)
    """Reward taken at the limit; grows from 0 on a straight line."""


class HeldOut(ApiModel):
    """Measure loss and preference accuracy on the rows that `data.evalFraction` holds out."""

    every_steps: int = filled(25, ge=1, le=10_000_000)
    """Steps between measurements; the last step is always measured."""
    max_rows: int = filled(256, ge=1, le=1_000_000)
    """Use the first so many of the held-out rows."""


class Stragglers(ApiModel):
    """What is done about samples that take long. Each moves work or asks for more; none changes a sample."""

    over_provision: Real = filled(0.0, ge=0, le=1)
    """Groups asked for beyond `promptsPerStep`, as a share of it: a step takes the first that are done, the
    rest are `surplus`. Favours short samples, which the report shows; 0 is off. APRIL (2025) uses 1."""
    steal_margin_seconds: int = filled(5, ge=1, le=86_400)
    """An idle actor is given another's group when that ends so much sooner, the prefill of what there is
    of it included. Below the noise of a sample's length moving costs more than it gains (verl#6533)."""
    deadline_factor: Real = filled(4.0, ge=1, le=1000)
    """A group that has been drawn for so many times the time that the longest hundredth of samples takes at
    its actor's pace goes to another actor, with what there is of it."""


class Train(ApiModel):
    """Change a model's weights."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self.algorithm == oldSelf.algorithm", "algorithm is immutable", "algorithm"),
        Rule(
            "has(self.oldLogprobs) == has(oldSelf.oldLogprobs)"
            " && (!has(self.oldLogprobs) || self.oldLogprobs == oldSelf.oldLogprobs)",
            "oldLogprobs is immutable",
            "oldLogprobs",
        ),
        Rule(
            "!has(oldSelf.maxSteps) || (has(self.maxSteps) && self.maxSteps >= oldSelf.maxSteps)",
            "maxSteps may only grow",
            "maxSteps",
        ),
        Rule(
            "has(self.data) == has(oldSelf.data)",
            "data may change its location, not come or go",
            "data",
        ),
        Rule(
            "!has(oldSelf.data) || !has(oldSelf.data.jsonl) || !has(oldSelf.data.jsonl.digest)"
            " || (has(self.data) && has(self.data.jsonl) && has(self.data.jsonl.digest)"
            " && self.data.jsonl.digest == oldSelf.data.jsonl.digest)",
            "a digest that is set stays: the rows may move, other rows are another run",
            "data.jsonl.digest",
        ),
    )

    algorithm: Algorithm
    """What is optimized; immutable."""
    data: Data | None = None
    """The rows. Unset: the environment brings its own."""
    held_out: HeldOut | None = None
    """Measurements on held-out rows (sft and the algorithms on preferences), as `eval_*` metrics; needs
    `data.evalFraction`. Unset: none."""
    environment: Environment | None = None
    """What the policy acts in (ppo, grpo, distill). Unset: `single-turn` over `data`."""
    rewards: tuple[Reward, ...] = many(32)
    """Where reward comes from (ppo, grpo: at least one; distill: none needed)."""
    sampling: Sampling = filled(default_factory=Sampling)
    """How completions are drawn (ppo, grpo, distill). What cuts or bends the distribution after temperature (topP, topK,
    minP, penalties) is refused here: the learner could not compute the same logprobs."""
    reference: ModelSource | None = None
    """Reference model of dpo, ipo, kto, and of the KL in ppo and grpo. Unset: the model this run
    starts from, frozen; it is loaded only when something needs it."""
    cache_reference: bool = filled(default=False)
    """Keep what the reference says of each answer (dpo, ipo, kto) in a file of the cache folder
    (`$ROLLOUT_CACHE/reference`), for later epochs and runs. In Exact the reference then scores each
    row by itself, so that no number depends on what was found."""
    max_prompt_tokens: int | None = Field(default=None, ge=1, le=16_777_216)
    """Longest prompt; longer ones are bad records. Unset: what the model's context leaves."""
    old_logprobs: Literal["Learner", "Actor"] = filled("Learner")
    """Whose logprobs are the denominator of the ratio: recomputed, or as sampled; immutable."""
    importance_sampling: ImportanceSampling | None = None
    """Correction between actor and learner. Unset: tokenTruncated when the engine is not the
    learner's own forward or `maxStaleness` is above 0, else none; none with `oldLogprobs: Actor`."""
    dynamic_sampling: DynamicSampling | None = None
    """Drop groups without signal and refill. Unset: such groups are consumed."""
    overlong_penalty: OverlongPenalty | None = None
    """Soft penalty for length. Unset: off."""
    stragglers: Stragglers | None = None
    """Slow samples (`numerics.mode: Fast`; refused in Exact, where time decides nothing). Unset: its
    defaults in Fast."""
    max_staleness: int = filled(0, ge=0, le=64)
    """Steps that a trajectory's oldest token may lag behind the step that consumes it; 0 is
    synchronous, the only setting under which two runs can be equal."""
    optimizer: Optimizer = filled(default_factory=lambda: Optimizer(adamw=AdamW()))
    """How parameters move along the gradient."""
    schedule: Schedule = filled(default_factory=lambda: Schedule(constant=Constant()))
    """The learning rate over steps."""
    max_grad_norm: Real = filled(1.0, ge=0, le=1_000_000)
    """Norm to which the gradient is clipped; 0 is off."""
    micro_batch_tokens: int = filled(16_384, ge=1, le=1_073_741_824)
    """Tokens, padding included, of one forward and backward pass of one rank; changes memory and
    speed, not the result."""
    activation_checkpointing: bool = filled(default=False)
    """Recompute activations in the backward pass: less memory, about a third slower."""
    max_steps: int | None = Field(default=None, ge=1, le=10_000_000)
    """Steps after which the run has succeeded; may grow while it runs."""
    epochs: int | None = Field(default=None, ge=1, le=1_000_000)
    """Passes over the data. Unset: as many as `maxSteps` needs, or 1 when that is unset too."""
    output: ModelOutput | None = None
    """Where the newest weights go when the run has ended well, as by `rollout model export`. On one machine; a cluster refuses it. Unset: they stay with the run."""
