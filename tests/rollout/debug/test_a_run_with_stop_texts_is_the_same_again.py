"""A whole run in Exact whose completions end at texts and tokens of its own: every one sampled again, and learned from."""

from __future__ import annotations

import pytest
from debug_kit import GRPO, build_config
from sampling_kit import record_sampled

from rollout.debug.sampling import sample_again
from rollout.ledger.sqlite.reader import LedgerReader

pytestmark = pytest.mark.process

EVEN = """
def even(prompts, completions, rows):
    return [sum(token % 2 == 0 for token in c.token_ids) / len(c.token_ids) for c in completions]
"""
STOPS = "aeiouAEIOU0123"
TOKENS = tuple(range(100, 140))


@pytest.fixture(scope="module")
def recorded(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped") / "tiny-1"
    (folder.parent / "even.py").write_text(EVEN)
    train = {
        **GRPO,
        "rewards": [{"python": {"path": str(folder.parent / "even.py"), "function": "even"}}],
        "sampling": {
            "maxNewTokens": 10,
            "minNewTokens": 2,
            "stop": list(STOPS),
            "stopTokenIds": list(TOKENS),
        },
        "maxSteps": 3,
    }
    record_sampled(build_config(folder, tiny_model, train))
    return folder


def test_completions_end_where_they_should_and_are_trained_on_whole(recorded, tiny_model):
    from rollout.rendering import build_renderer

    decode = build_renderer(tiny_model).decode
    with LedgerReader(recorded / "ledger.db") as ledger:
        samples = [view.trajectory for step in (1, 2, 3) for view in ledger.samples(step)]
        metrics = [record.metrics for record in ledger.steps()]

    said = [one for one in samples if decode(one.token_ids[2:]).endswith(tuple(STOPS))]
    asked = [one for one in samples if one.token_ids[-1] in TOKENS]
    assert said
    assert asked
    for one in samples:
        ended = one in said or one in asked
        assert one.ending == ("stop" if ended else "length")
        assert one.loss_mask == (1,) * len(one.token_ids)
        assert not set(one.token_ids[:-1]) & set(TOKENS)
        assert len(one.token_ids) > 2
        assert one.text == (decode(one.token_ids[:-1]) if ended else decode(one.token_ids))
    assert max(one["mismatch_kl"] for one in metrics) < 1e-6


@pytest.mark.parametrize("step", [1, 3])
def test_every_token_is_sampled_again(recorded, step):
    found = sample_again(recorded, step)

    assert (found["exact"], found["equal"]) == (True, True)
    assert [line["completion"] for line in found["samples"]] == [
        line["recorded"] for line in found["samples"]
    ]
