"""All rules, in the order in which their problems are shown."""

from rollout_api.checks import (
    batch,
    cluster,
    distill,
    evaluations,
    logprobs,
    memory,
    model,
    operations,
    policy,
    ppo,
    preferences,
    rewards,
    storage,
)

RULES = (
    *model.RULES,
    *batch.RULES,
    *logprobs.RULES,
    *policy.RULES,
    *ppo.RULES,
    *distill.RULES,
    *preferences.RULES,
    *rewards.RULES,
    *evaluations.RULES,
    *operations.RULES,
    *storage.RULES,
    *cluster.RULES,
    *memory.RULES,
)
