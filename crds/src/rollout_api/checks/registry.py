"""All rules, in the order in which their problems are shown."""

from rollout_api.checks import (
    batch,
    evaluations,
    logprobs,
    memory,
    model,
    operations,
    policy,
    rewards,
)

RULES = (
    *model.RULES,
    *batch.RULES,
    *logprobs.RULES,
    *policy.RULES,
    *rewards.RULES,
    *evaluations.RULES,
    *operations.RULES,
    *memory.RULES,
)
