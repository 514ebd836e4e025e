"""`make demo`, on the session's cluster: nothing that is done to a run changes what it comes to.

Quick: `test_a_run_trains_in_pods.py` kills a rank, `test_a_snapshot_outlives_its_run.py` deletes a run with its volume.
"""

import pytest
from demo import play
from installation import cache_of

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.timeout(3600)]


def test_two_equal_runs_end_with_one_hash_though_one_of_them_is_harmed(operated, tmp_path):
    tmp_path.chmod(0o755)
    ends = play(operated, cache_of(operated.kubectl), tmp_path, print)
    assert ends.harmed.chains[-1] == ends.quiet.chains[-1]
    assert set(ends.harmed.chains) <= set(ends.quiet.chains)
