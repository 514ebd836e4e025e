"""A vLLM server loads a large model for many minutes: whoever waits for it asks the manifest how long."""

import pytest

from rollout.engines.vllm.build import plan_start_seconds
from rollout_api.v1alpha1.operations import Limits


@pytest.mark.parametrize(("given", "seconds"), [(60, 300), (900, 900), (7200, 7200)])
def test_a_server_may_start_for_as_long_as_nothing_may_move(given, seconds):
    assert plan_start_seconds(Limits(no_progress_seconds=given)) == seconds
