"""In which order files are handed to pytest's workers: drawn from a seed, each file whole, so that every commit is tested in another.

A test that leans on another file, or on being first, is found. What must share a worker is one share: real vLLM servers,
clusters of real nodes (two workers that each have one would be slower than one after the other), the chart that the
attacks of tenants share. A share begins only where so much comes behind it that the other worker is busy until it ends,
`SLACK_SECONDS` aside: that is what an order may cost over the longest first, as far as `SECONDS` holds.
`python tests/file_order.py` prints the seed of the tree that is checked out.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePath

import pytest
from fresh_seeds import find_first
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
SEED = "ROLLOUT_TEST_ORDER"
"""The variable that holds the seed; where it is unset, files come by name."""
SERVERS, TENANTS, CLUSTERS = "tests/rollout/engines/vllm/", "e2e/tenants/", "e2e/"
REAL_NODES = "real nodes"
SECONDS = {
    REAL_NODES: 1800,
    TENANTS: 220,
    SERVERS: 210,
    "test_watches_break_and_nothing_is_lost": 95,
    "test_an_agent_learns_to_use_its_tool": 75,
    "test_a_model_is_measured_by_itself": 70,
    "test_a_sweep_goes_on_where_it_was": 70,
    "test_every_preference_sample_runs": 65,
    "test_it_learns_honestly": 65,
    "test_vllm_is_served": 65,
    "test_every_call_may_fail": 60,
    "test_a_batch_is_answered_once_whatever_dies": 60,
    "test_the_webhook_guards_runs": 60,
    "test_every_field_is_read_or_refused": 60,
    "test_people_work_with_the_commands": 60,
    "test_the_path_of_a_platform_engineer_is_walked": 60,
    "test_bad_input_is_named_or_counted": 55,
    "test_the_charts_upgrade_under_living_runs": 55,
    "test_shown_manifests_run": 55,
    "test_pods_do_their_work_and_wait": 55,
    "test_the_charts_serve_one_namespace": 50,
    "test_the_path_of_whoever_is_on_call_is_walked": 50,
    "test_the_kinds_come_with_the_chart": 45,
    "test_the_charts_install_upgrade_and_leave": 45,
    "test_the_control_plane_goes_and_comes_back": 45,
    "test_an_endpoint_has_as_many_servers_as_its_load_needs": 45,
    "test_programs_of_one_file_run": 45,
    "test_one_of_two_operators_writes": 45,
    "test_the_samples_for_one_gpu_run": 40,
    "test_a_run_begins_with_a_snapshot": 40,
    "test_live_follows_a_run": 40,
    "test_hostile_bytes_end_in_a_named_refusal": 40,
    "test_a_run_goes_on_at_a_host_and_comes_home": 40,
    "test_the_path_of_a_researcher_is_walked": 40,
    "test_runs_that_cannot_start_say_why": 35,
    "test_a_living_run_keeps_its_settings": 35,
    "test_a_plugin_keeps_its_contract": 35,
    "test_vllm_answers_and_measures": 35,
    "test_damage_is_found_and_made_good": 35,
    "test_the_documentation_is_a_site": 35,
    "test_a_detached_run_goes_on_alone": 35,
    "test_the_operator_is_quiet": 35,
    "test_a_kill_changes_nothing": 30,
    "test_an_interrupted_run_goes_on": 30,
    "test_a_forked_process_is_what_a_started_one_would_be": 30,
    "test_a_pipeline_feeds_its_next_run": 30,
    "test_a_postgres_ledger_survives_its_server": 30,
    "test_every_algorithm_trains_from_either_format": 30,
    "test_the_operator_may_die_at_any_call": 30,
    "test_the_gsm8k_sample_starts": 30,
    "test_a_loop_ends_where_a_run_does": 30,
    "test_what_is_due_is_done_in_time": 25,
    "test_a_pod_serves_by_its_order": 25,
    "test_a_run_publishes_what_changed": 25,
    "test_a_run_starts_from_anothers_model": 25,
    "test_the_operator_writes_no_more_than_it_must": 25,
    "test_who_is_waited_for_is_named": 25,
    "test_a_batch_goes_from_parquet_to_a_bucket": 20,
    "test_pods_without_a_learner_answer_and_measure": 20,
    "test_a_data_source_takes_the_coordinator_down": 20,
    "test_nobody_operates": 20,
    "test_what_cannot_be_cleaned_up_is_said": 20,
    "test_rows_are_embedded_and_scored_once": 15,
    "test_a_run_is_suspended_and_goes_on": 15,
    "test_a_run_keeps_its_objects_in_a_bucket": 15,
    "test_a_tracker_is_told_of_a_run": 15,
    "test_actors_come_and_go_in_numbers": 15,
}
"""About what a quick run of a share takes on two cores, where that is more than `SECONDS_A_TEST` for each of its tests."""
SECONDS_A_TEST, SECONDS_A_CLUSTER_TEST, SLACK_SECONDS = 1, 2, 10


@cache
def share_of(file: str) -> str:
    """What a file, as a path from the root, is handed out with: itself, its folder, or everything with real nodes."""
    for folder in (SERVERS, TENANTS):
        if file.startswith(folder):
            return folder
    is_real = file.startswith(CLUSTERS) and "mark.real_nodes" in (ROOT / file).read_text()
    return REAL_NODES if is_real else file


def weigh(share: str, num_tests: int) -> int:
    """About its seconds."""
    a_test = SECONDS_A_CLUSTER_TEST if share.startswith(CLUSTERS) else SECONDS_A_TEST
    known = max(SECONDS.get(share, 0), SECONDS.get(PurePath(share).stem, 0))
    return max(known, num_tests * a_test)


def draw_order(seconds: Mapping[str, int], seed: str) -> list[str]:
    """Shares in the order of a seed, each so early that as much as it takes comes behind it."""
    waiting = sorted(seconds)
    random.Random(seed).shuffle(waiting)
    backwards, behind = list[str](), SLACK_SECONDS
    while waiting:
        shortest = min(waiting, key=seconds.__getitem__)
        one = next((one for one in waiting if seconds[one] <= behind), shortest)
        waiting.remove(one)
        backwards.append(one)
        behind += seconds[one]
    return backwards[::-1]


def sort_items(items: list[pytest.Item], seed: str) -> None:
    """The same order in every worker, which pytest-xdist asks for; each file's tests stay as they are."""
    num_tests = Counter(share_of(_file(item.nodeid)) for item in items)
    drawn = draw_order({one: weigh(one, num) for one, num in num_tests.items()}, seed)
    place = {share: number for number, share in enumerate(drawn)}
    files = sorted({_file(item.nodeid) for item in items})
    random.Random(seed).shuffle(files)
    files.sort(key=lambda file: place[share_of(file)])
    place_of_file = {file: number for number, file in enumerate(files)}
    items.sort(key=lambda item: place_of_file[_file(item.nodeid)])


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class ByShare(LoadScopeScheduling):
    """Hands whole shares to workers, in the order in which they were collected.

    xdist's own ``loadgroup`` marks ids in a way that pytest 9.2 does not read.
    """

    def _split_scope(self, nodeid: str) -> str:
        return share_of(_file(nodeid))


if __name__ == "__main__":
    print(find_first())
