"""``rollout snapshot``: the states of runs that can be gone on from, wherever they lie."""
