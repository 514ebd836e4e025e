"""All rules, in the order in which their problems are shown."""

from rollout_api.checks import ending, images, model, operations, schedules, sizes, storage, unbuilt
from rollout_api.checks.accelerators import fitting
from rollout_api.checks.environment import (
    agents,
    evaluate,
    evaluations,
    plugins,
    reward_calls,
    rewards,
    tools,
)
from rollout_api.checks.inference import infer, serve
from rollout_api.checks.pods import cluster
from rollout_api.checks.training import batch, distill, logprobs, policy, ppo, preferences

RULES = (
    *sizes.RULES,
    *unbuilt.RULES,
    *images.RULES,
    *model.RULES,
    *batch.RULES,
    *logprobs.RULES,
    *policy.RULES,
    *ppo.RULES,
    *distill.RULES,
    *preferences.RULES,
    *rewards.RULES,
    *reward_calls.RULES,
    *agents.RULES,
    *tools.RULES,
    *plugins.RULES,
    *evaluations.RULES,
    *infer.RULES,
    *serve.RULES,
    *evaluate.RULES,
    *operations.RULES,
    *ending.RULES,
    *schedules.RULES,
    *storage.RULES,
    *cluster.RULES,
    *fitting.RULES,
)
