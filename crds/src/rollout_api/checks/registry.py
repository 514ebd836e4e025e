"""All rules, in the order in which their problems are shown."""

from rollout_api.checks import (
    batch,
    cluster,
    distill,
    ending,
    evaluations,
    logprobs,
    memory,
    model,
    operations,
    policy,
    ppo,
    preferences,
    rewards,
    sizes,
    storage,
    unbuilt,
)

RULES = (
    *sizes.RULES,
    *unbuilt.RULES,
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
    *ending.RULES,
    *storage.RULES,
    *cluster.RULES,
    *memory.RULES,
)
