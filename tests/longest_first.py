"""How files are handed to pytest's workers: each whole, those that take longest first, real vLLM servers to one worker.

A long file that begins last keeps one worker waiting for the other; two workers that share servers start each twice.
"""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler import LoadFileScheduling

SERVERS = "tests/rollout/engines/vllm/"
"""A folder whose files are one share: its servers live as long as the worker."""
SECONDS = {
    SERVERS: 150,
    "test_it_learns_honestly": 60,
    "test_a_sweep_goes_on_where_it_was": 50,
    "test_vllm_is_served": 50,
    "test_every_field_is_read_or_refused": 50,
    "test_a_run_publishes_what_changed": 45,
    "test_every_preference_sample_runs": 40,
    "test_a_batch_goes_from_parquet_to_a_bucket": 40,
    "test_vllm_answers_and_measures": 35,
    "test_a_run_keeps_its_objects_in_a_bucket": 35,
    "test_pods_without_a_learner_answer_and_measure": 35,
    "test_a_run_begins_with_a_snapshot": 30,
    "test_a_kill_changes_nothing": 30,
    "test_a_run_hands_its_model_over_when_it_ends": 30,
    "test_an_interrupted_run_goes_on": 25,
    "test_vllm_loads_what_was_exported": 25,
    "test_own_objectives_run_as_shown": 25,
    "test_the_gsm8k_sample_starts": 25,
    "test_a_detached_run_goes_on_alone": 25,
    "test_the_number_of_actors_is_followed": 20,
    "test_damage_is_found_and_made_good": 20,
    "test_who_is_waited_for_is_named": 20,
    "test_a_rank_that_dies_is_named": 20,
}
"""What a quick run of a file takes on two cores, where that is more than a second for each of its tests."""


def share_of(nodeid: str) -> str:
    """The file of a test, or the folder whose files belong together."""
    return SERVERS if nodeid.startswith(SERVERS) else nodeid.partition("::")[0]


def weigh(share: str, num_tests: int) -> int:
    """About its seconds; only the order matters."""
    return max(SECONDS.get(share, 0), SECONDS.get(PurePath(share).stem, 0), num_tests)


class LongestFirst(LoadFileScheduling):
    """In place of xdist's own order, which is that of the number of tests."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)

    def _assign_work_unit(self, node: object) -> None:
        if self.config.option.loadscopereorder and self.workqueue:
            longest = max(self.workqueue, key=lambda one: weigh(one, len(self.workqueue[one])))
            self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)
