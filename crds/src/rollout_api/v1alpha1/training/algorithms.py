"""Every algorithm with its knobs: meaning, unit, range, and the default with its source.

Defaults are those of `defaults@v1`; the schema carries none, so that a preset may fill them.
"""

from collections.abc import Mapping
from math import ceil
from operator import attrgetter
from typing import ClassVar, Literal, get_args

from pydantic import Field

from rollout_api.base import ApiModel, OneOf, Real, filled
from rollout_api.v1alpha1.common import ModelSource
from rollout_api.v1alpha1.training.optimizer import AdamW, Optimizer
from rollout_api.v1alpha1.training.preferences import Dpo, Ipo, Kto, Orpo, Rm, Simpo
from rollout_api.v1alpha1.training.surrogate import ClippedSurrogate, Surrogate
from rollout_api.v1alpha1.training.traits import Traits

Aggregation = Literal["TokenMean", "SequenceMean", "SequenceSum", "FixedLength"]
KlEstimator = Literal["K1", "K2", "K3"]
Placement = Literal["Loss", "Reward"]


class Sft(ApiModel):
    """Supervised fine-tuning: negative log-likelihood of the answer, mean over the batch's tokens."""

    traits: ClassVar[Traits] = Traits(
        row="answer",
        learning_rate="2e-05",
        tiny_learning_rate="0.003",
    )
    batch_size: int = filled(8, ge=1, le=1_048_576)
    """Rows per optimizer step, over all ranks (TRL: 8)."""
    packing: bool = filled(default=True)
    """Lay several rows into one sequence, attention kept apart; changes speed, not the loss."""
    max_length: int = filled(1024, ge=2, le=16_777_216)
    """Longest row in tokens, answer included; longer rows are cut at the end (TRL: 1024)."""
    loss: Literal["CompletionOnly", "Full"] = filled("CompletionOnly")
    """Which tokens count: those of the assistant, or all."""
    label_smoothing: Real = filled(0.0, ge=0, lt=1)
    """Probability mass spread over the vocabulary; 0 is off."""


class AdaptiveKl(ApiModel):
    """Steer the KL coefficient towards a target (Ziegler 2019)."""

    target: Real = filled(6.0, gt=0, le=1000)
    """Wanted KL per answer, in nats."""
    horizon: int = filled(10_000, ge=1, le=1_000_000_000)
    """Samples over which the coefficient moves by at most a fifth of its size (its code: 10,000)."""


class Fixed(ApiModel):
    """Keep the coefficient as it is."""


class KlController(OneOf):
    """How the KL coefficient changes over steps."""

    fixed: Fixed | None = None
    """Not at all; the default."""
    adaptive: AdaptiveKl | None = None
    """Towards a target KL."""


class Critic(ApiModel):
    """The value model of PPO: a model of its own with a scalar head."""

    model: ModelSource | None = None
    """What it starts from: a reward model, with its head (as in InstructGPT), or a language model of the
    policy's tokens and any size, with a new head. Unset: the policy's starting model with a new head,
    whose weights are drawn from the run's seed with a standard deviation of 1 / (hidden size + 1)."""
    optimizer: Optimizer = filled(default_factory=lambda: Optimizer(adamw=AdamW()))
    """Its own optimizer. Learning rate unset: 1e-5 (verl), for the models of `rollout://tiny-*` 1e-3;
    it follows the form of `train.schedule` from its own peak."""
    max_grad_norm: Real = filled(1.0, ge=0, le=1_000_000)
    """Norm to which its gradient is clipped; 0 is off."""
    warmup_steps: int = filled(0, ge=0, le=1_000_000)
    """Steps in which only the critic learns; fewer than `train.maxSteps`."""
    value_clip: Real = filled(0.2, ge=0, le=1000)
    """How far a value may move from the stored one before its loss is clipped; 0 is off (TRL: 0.2)."""
    value_coefficient: Real = filled(0.5, gt=0, le=100)
    """Scale of the squared error (verl: 0.5). The critic has an optimizer of its own, so under AdamW
    this matters against `maxGradNorm` only."""


class Ppo(ApiModel):
    """Proximal policy optimization (Schulman 2017) with GAE and a learned critic."""

    traits: ClassVar[Traits] = Traits(
        rewards=True,
        reference="KlCoefficient",
        models={"critic": ("critic", "model")},
        num_samples=attrgetter("samples_per_prompt"),
        pools_rewards=lambda _: True,
    )
    prompts_per_step: int = filled(32, ge=1, le=1_048_576)
    """Prompts consumed by one step."""
    samples_per_prompt: int = filled(1, ge=1, le=4096)
    """Completions sampled per prompt."""
    clip_low: Real = filled(0.2, ge=0, lt=1)
    """Lower clip: ratios below 1 - clipLow gain nothing (paper: 0.2)."""
    clip_high: Real = filled(0.2, ge=0, le=1000)
    """Upper clip: ratios above 1 + clipHigh gain nothing (paper: 0.2)."""
    dual_clip: Real | None = Field(default=None, gt=1, le=1000)
    """Bound of the loss for negative advantages, in units of the advantage (Ye 2020: 3). Unset: off."""
    gamma: Real = filled(1.0, gt=0, le=1)
    """Discount per token (RLHF: 1)."""
    gae_lambda: Real = filled(0.95, ge=0, le=1)
    """Bias against variance of the advantage (Schulman 2016: 0.95)."""
    whiten_advantages: bool = filled(default=True)
    """Scale advantages to mean 0 and variance 1 over the global mini-batch."""
    truncation: Literal["Terminal", "Bootstrap"] = filled("Terminal")
    """What follows an answer cut by its token limit: nothing, or the critic's value of the state there.
    Rewards and discounts go from sampled token to sampled token: a tool's output is skipped."""
    aggregation: Aggregation = filled("TokenMean")
    """How token losses become one number; denominators are global."""
    kl_coefficient: Real = filled(0.05, ge=0, le=100)
    """Weight of the KL against the reference; 0 loads no reference (TRL: 0.05)."""
    kl_estimator: KlEstimator = filled("K1")
    """Estimator of the KL per token (Schulman 2020)."""
    kl_placement: Placement = filled("Reward")
    """Whether the KL is taken from each token's reward (the original) or added to the loss."""
    kl_controller: KlController = filled(default_factory=lambda: KlController(fixed=Fixed()))
    """How the coefficient changes."""
    entropy_coefficient: Real = filled(0.0, ge=0, le=100)
    """Weight of the entropy bonus; 0 is off."""
    epochs: int = filled(1, ge=1, le=64)
    """Passes over one step's batch."""
    mini_batches: int = filled(1, ge=1, le=65_536)
    """Optimizer updates per pass; must divide the batch."""
    critic: Critic = filled(default_factory=Critic)
    """Learns the value of each token, from which PPO estimates advantages."""


def _quorum(grpo: "Grpo") -> int:
    compared = 1 if grpo.advantage_baseline == "None" else 2
    return max(compared, ceil(float(grpo.quorum) * grpo.group_size))


class Grpo(ApiModel):
    """Group relative policy optimization (Shao 2024): advantages from the group, no critic.

    Its family is this with other settings; docs/how-to/choose-an-algorithm.md names them, and each
    name is a preset.
    """

    traits: ClassVar[Traits] = Traits(
        rewards=True,
        reference="KlCoefficient",
        num_samples=attrgetter("group_size"),
        branches=True,
        samples_min=_quorum,
        pools_rewards=lambda grpo: grpo.advantage_baseline == "None",
    )
    prompts_per_step: int = filled(32, ge=1, le=1_048_576)
    """Prompts, and so groups, consumed by one step."""
    group_size: int = filled(8, ge=1, le=4096)
    """Completions sampled per prompt; 1 only without a baseline of the group."""
    surrogate: Surrogate = filled(default_factory=lambda: Surrogate(clipped=ClippedSurrogate()))
    """The objective that is optimized for each token."""
    ratio: Literal["Token", "Sequence", "SequenceProduct"] = filled("Token")
    """Where old and new policy are compared: token by token; per completion, the geometric mean of its
    tokens (GSPO); or per completion, their product (RLOO)."""
    clip_low: Real = filled(0.2, ge=0, lt=1)
    """Lower clip: ratios below 1 - clipLow gain nothing (paper: 0.2). Read by `clipped`."""
    clip_high: Real = filled(0.2, ge=0, le=1000)
    """Upper clip: ratios above 1 + clipHigh gain nothing (paper: 0.2; DAPO: 0.28). Read by `clipped`."""
    dual_clip: Real | None = Field(default=None, gt=1, le=1000)
    """Bound of the loss for negative advantages, in units of the advantage (Ye 2020: 3). Unset: off.
    Read by `clipped`."""
    aggregation: Aggregation = filled("TokenMean")
    """How token losses become one number: mean over all tokens (DAPO), mean of sequence means (the
    GRPO paper), mean of sequence sums, or sums over `sampling.maxNewTokens` (Dr. GRPO). Denominators
    are global, so ranks and micro-batches change nothing."""
    advantage_baseline: Literal["GroupMean", "LeaveOneOut", "None"] = filled("GroupMean")
    """What is taken off a reward: the mean of its group (GRPO), the mean of the group's others
    (RLOO), or nothing (REINFORCE++)."""
    advantage_scale: Literal["Group", "Batch", "None", "Whiten"] = filled("Group")
    """Divide by the group's or the batch's spread, or not at all (Dr. GRPO, RLOO); or whiten all
    tokens of the batch to mean 0 and variance 1 (REINFORCE++)."""
    advantage_epsilon: Real = filled(1e-6, gt=0, le=1)
    """Added to the spread (verl: 1e-6, TRL: 1e-4). `Whiten` adds 1e-8 to the variance instead."""
    quorum: Real = filled(0.5, ge=0, le=1)
    """Share of a group that must survive infrastructure failures once `limits.sampleAttempts` tries are
    spent; its statistics are the survivors'. A smaller group is excluded, as is one of a single sample that
    has a baseline to compare with; 1 keeps whole groups only."""
    kl_coefficient: Real = filled(0.0, ge=0, le=100)
    """Weight of the KL against the reference; 0 loads no reference (paper: 0.04; TRL: 0)."""
    kl_estimator: Literal["K1", "K2", "K3", "K3Plus", "K3Corrected"] = filled("K3")
    """Estimator of the KL per token (Schulman 2020; the paper's is K3). `K3Plus`: K3 with K2's
    gradient. `K3Corrected`: K3 times the token's ratio, unbiased off-policy (TRL's default)."""
    kl_placement: Literal["Loss", "Reward", "TokenReward"] = filled("Loss")
    """Add the KL to the loss (the paper), take its sum from each completion's reward before the
    baseline (RLOO), or let each token pay for what follows it (REINFORCE++)."""
    entropy_coefficient: Real = filled(0.0, ge=0, le=100)
    """Weight of the entropy bonus; 0 is off."""
    epochs: int = filled(1, ge=1, le=64)
    """Passes over one step's batch."""
    mini_batches: int = filled(1, ge=1, le=65_536)
    """Optimizer updates per pass; must divide `promptsPerStep`."""


class Distill(ApiModel):
    """On-policy distillation (GKD 2023, MiniLLM 2023, Thinking Machines 2025) from a frozen teacher.

    The policy answers and the teacher scores each token of the answer: a token's advantage is the
    teacher's logprob less the policy's. Needs no `rewards`.
    """

    traits: ClassVar[Traits] = Traits(
        models={"teacher": ("teacher",)},
        num_samples=attrgetter("samples_per_prompt"),
        branches=True,
    )
    teacher: ModelSource
    """The model to learn from, of the policy's tokens and any size; frozen, loaded in the learner. It scores
    at `sampling.temperature`, as the policy does."""
    prompts_per_step: int = filled(32, ge=1, le=1_048_576)
    """Prompts consumed by one step."""
    samples_per_prompt: int = filled(4, ge=1, le=4096)
    """Completions sampled per prompt (Tinker's cookbook: 4); 1 only without `rewardCoefficient`."""
    kl_coefficient: Real = filled(1.0, gt=0, le=100)
    """Weight of the teacher's part of the advantage (Tinker's cookbook: 1)."""
    kl_discount: Real = filled(0.0, ge=0, le=1)
    """How much of what the tokens after it cost a token pays: 0, nothing (GKD, Thinking Machines), has the least
    noise; 1, all of it (MiniLLM), follows the KL of whole answers."""
    reward_coefficient: Real = filled(0.0, ge=0, le=100)
    """Weight of the rewards' part of the advantage: reward less the mean of its group. 0: rewards are only
    recorded."""
    clip_low: Real = filled(0.2, ge=0, lt=1)
    """Lower clip: ratios below 1 - clipLow gain nothing (PPO: 0.2). Without effect on a single update."""
    clip_high: Real = filled(0.2, ge=0, le=1000)
    """Upper clip: ratios above 1 + clipHigh gain nothing (PPO: 0.2)."""
    aggregation: Aggregation = filled("TokenMean")
    """How token losses become one number; denominators are global."""
    epochs: int = filled(1, ge=1, le=64)
    """Passes over one step's batch."""
    mini_batches: int = filled(1, ge=1, le=65_536)
    """Optimizer updates per pass; must divide `promptsPerStep`."""


class Algorithm(OneOf):
    """What is optimized, and its settings."""

    sft: Sft | None = None
    """Supervised fine-tuning on answers."""
    rm: Rm | None = None
    """A reward model from preference pairs."""
    dpo: Dpo | None = None
    """Direct preference optimization on pairs."""
    ipo: Ipo | None = None
    """Identity preference optimization on pairs."""
    kto: Kto | None = None
    """Kahneman-Tversky optimization on unpaired labels."""
    orpo: Orpo | None = None
    """Odds ratio preference optimization on pairs."""
    simpo: Simpo | None = None
    """Simple preference optimization on pairs."""
    ppo: Ppo | None = None
    """Reinforcement learning with a critic."""
    grpo: Grpo | None = None
    """Reinforcement learning with group-relative advantages."""
    distill: Distill | None = None
    """On-policy distillation from a teacher."""

    @property
    def traits(self) -> Traits:
        """What holds of the algorithm beside its settings."""
        return self.value.traits

    @property
    def is_online(self) -> bool:
        """Whether the algorithm samples from the policy it trains."""
        return self.traits.is_online

    @property
    def items_per_step(self) -> int:
        """Prompts or rows that one step consumes."""
        return int(self.value.prompts_per_step if self.is_online else self.value.batch_size)

    @property
    def num_samples(self) -> int:
        """Completions sampled per prompt; 1 where rows are learned from."""
        return self.traits.num_samples(self.value)

    @property
    def uses_reference(self) -> bool:
        """Whether a reference model is loaded beside the policy."""
        if self.traits.reference == "KlCoefficient":
            return self.value.kl_coefficient > 0
        return self.traits.reference == "Always"


TRAITS: Mapping[str, Traits] = {
    name: get_args(field.annotation)[0].traits for name, field in Algorithm.model_fields.items()
}
"""Every algorithm's traits by its name in a manifest."""
