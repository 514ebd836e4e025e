from types import SimpleNamespace

import pytest

from rollout.engines.sizes import TURNS_CONTEXT, context_tokens
from rollout_api.v1alpha1.environment import Environment
from rollout_api.v1alpha1.pods.roles import Engine
from rollout_api.v1alpha1.training.train import Train

BUILTIN = {"builtin": {"name": "single-turn"}}
OWN = {"python": {"module": "world", "className": "World"}}


def config(engine, environment):
    algorithm = {"grpo": {"promptsPerStep": 4, "groupSize": 4}}
    sampling = {"maxNewTokens": 16}
    train = Train.model_validate({"algorithm": algorithm, "sampling": sampling}).model_copy(
        update={"environment": Environment.model_validate(environment)}
    )
    chosen = Engine.model_validate(engine)
    actors = SimpleNamespace(chosen_engine=chosen)
    spec = SimpleNamespace(actors=actors, train=train, evaluations=(), infer=None)
    return SimpleNamespace(spec=spec, resolved=SimpleNamespace(prompt_tokens_max=25))


@pytest.mark.parametrize(
    ("engine", "environment", "context", "tokens"),
    [
        ({"embedded": {}}, OWN, 40_000, 40_000),
        ({"vllm": {}}, BUILTIN, 40_000, 41),
        ({"vllm": {}}, OWN, 40_000, TURNS_CONTEXT),
        ({"vllm": {}}, OWN, 512, 512),
        ({"vllm": {"maxModelLength": 100}}, OWN, 40_000, 100),
        ({"vllm": {"maxModelLength": 100}}, BUILTIN, 64, 64),
    ],
)
def test_a_users_environment_may_have_turns(engine, environment, context, tokens):
    assert context_tokens(config(engine, environment), context) == tokens
