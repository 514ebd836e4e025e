"""A real run whose versions are deltas: actors and learner may die, and the chain is the same."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "supervisor"))

from local_jobs import MANIFEST, start_job
from mirror_memory import flip_in_memory

from rollout.ledger.sqlite.reader import LedgerReader
from rollout.objects.filesystem import FilesystemStore
from rollout.weights.digest import digest_tensors, load_weights
from rollout.weights.mirror import WeightFiles, read_bases
from rollout.weights.publisher import CHAIN_MAX

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

BIG = (
    MANIFEST.replace(
        "hidden=64&layers=1&heads=2&kv_heads=1&intermediate=64",
        "hidden=256&layers=2&heads=4&kv_heads=2&intermediate=512",
    )
    .replace('context=64"}', 'context=64", dtype: BFloat16}')
    .replace('learningRate: "1e-3"', 'learningRate: "3e-6"')
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    job = start_job(tmp_path_factory.mktemp("deltas") / "runs", manifest=BIG)
    return job, job.finish()


def versions_of(run_dir):
    with LedgerReader(run_dir / "ledger.db") as ledger:
        state = ledger.state()
        kept = [*state.versions, *(anchor.version for anchor in ledger.anchors())]
        others = {name for anchor in ledger.anchors() for name in anchor.objects.values()}
    return kept, others


def test_versions_are_deltas_and_nothing_is_left_behind(undisturbed, tmp_path):
    job, result = undisturbed
    assert result["step"] == 12
    store = FilesystemStore(job.run_dir / "objects")
    kept, others = versions_of(job.run_dir)
    deltas = [version for version in kept if version.bases]
    assert deltas
    assert all(len(version.bases) <= CHAIN_MAX for version in deltas)
    for version in kept:
        assert read_bases(store.path(version.object)) == version.bases
        path = WeightFiles(store, tmp_path).path(version.object)
        assert digest_tensors(load_weights(path)) == version.digest
    dense = store.size(deltas[0].bases[-1])
    assert max(store.size(version.object) for version in deltas) < dense / 10
    there = {path.name for path in (job.run_dir / "objects/blake3").glob("*/*")}
    named = {name for version in kept for name in version.objects} | others
    assert there == {name.removeprefix("blake3:") for name in named}
    assert not (job.run_dir / "mirror" / "actor-0").exists()


@pytest.mark.parametrize(
    "victims",
    [
        ("actor-0", "learner"),
        pytest.param(("learner", "actor-0"), marks=pytest.mark.slow),
        pytest.param(("coordinator", "actor-0"), marks=pytest.mark.slow),
    ],
)
def test_who_dies_and_comes_back_catches_up_from_a_dense_base(undisturbed, victims, tmp_path):
    _, expected = undisturbed
    job = start_job(tmp_path / "runs", manifest=BIG, steps_max=0)
    for step, victim in zip((4, 7), victims, strict=False):
        job.limit_steps(step + 4)
        job.wait_until(lambda status, step=step: status.step >= step)
        job.kill(victim)
    job.limit_steps()
    result = job.finish()
    assert (result["step"], result["chain"]) == (12, expected["chain"])


def test_a_mirror_with_a_flipped_bit_is_found_and_made_again(undisturbed, tmp_path):
    _, expected = undisturbed
    job = start_job(tmp_path / "runs", manifest=BIG, steps_max=8)
    job.wait_until(lambda status: status.step >= 3)
    (actor,) = job.processes("actor-0")
    flip_in_memory(actor.pid, -1000)
    job.limit_steps()
    result = job.finish()
    assert (result["step"], result["chain"]) == (12, expected["chain"])
    log = (job.run_dir / "logs" / "actor-0.log").read_text()
    coordinator = (job.run_dir / "logs" / "coordinator.log").read_text()
    assert "not this version's weights" in log + coordinator
