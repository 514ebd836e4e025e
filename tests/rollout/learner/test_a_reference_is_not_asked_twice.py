"""A cache before the reference of DPO, IPO and KTO: found or not, cut or not, the numbers are the same."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from rollout.algorithms.preference.dpo import DpoSettings
from rollout.algorithms.preference.ipo import IpoSettings
from rollout.algorithms.preference.kto import KtoSettings
from rollout.learner.build import build_reference
from rollout.learner.config.preference import LabelSettings, PairSettings
from rollout.learner.forward.packed_rows import GroupTokens
from rollout.learner.loop import run_learner
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.preference.reference_cache import (
    ReferenceCache,
    answer_keys,
    store_name,
)
from rollout.learner.objectives.preference.reference_store import (
    RECORD_BYTES,
    ReferenceStore,
    open_reference_store,
)
from rollout.protocol import messages as m

ALGORITHMS = {
    "dpo": PairSettings(loss=DpoSettings(beta=0.5), max_length=32),
    "ipo": PairSettings(loss=IpoSettings(beta=0.5), max_length=32),
    "kto": LabelSettings(loss=KtoSettings(beta=0.5), max_length=32),
}
NUM_ROWS, BATCH = 12, 4
EPOCH = NUM_ROWS // BATCH


class Counted(nn.Module):
    """A reference that counts how often it computes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.count = 0

    def forward(self, *args, **kwargs):
        self.count += 1
        return self.model(*args, **kwargs)


def make_rows(step: int) -> m.Batch:
    """Twelve rows an epoch, in another order each."""
    epoch, place = divmod(step - 1, EPOCH)
    order = list(range(NUM_ROWS))
    random.Random(epoch).shuffle(order)
    rows = []
    for n in order[place * BATCH : (place + 1) * BATCH]:
        messages = [{"role": "user", "content": f"{n}+{n}" + "=" * (n % 4)}]
        told = {"answer": str(n), "chosen": str(2 * n), "rejected": "?" * (1 + n % 3)}
        rows.append(m.DataRow(ordinal=n, row={"messages": messages, **told, "label": n % 2 == 0}))
    ids = tuple((f"r/{step}/{row.ordinal}",) for row in rows)
    return m.Batch(step=step, ids=ids, rows=tuple(rows), cursor=m.Cursor(next_ordinal=step * BATCH))


def live(world, calls, store: ReferenceStore | None, counts: list[int] | None = None):
    """A whole life of the learner; ``counts`` takes the reference's computations before each step."""
    parts = world.parts(calls)
    reference = Counted(parts.reference)
    exact = world.settings.exact
    cache = None if store is None else ReferenceCache(reference, store, Parallel(), alone=exact)
    parts = replace(parts, reference=reference, reference_cache=cache)
    noted, make = [] if counts is None else counts, calls.make
    calls.make = lambda step: noted.append(reference.count) or make(step)
    run_learner(parts, parts.session.start(1, "here"), world.watch)
    noted.append(reference.count)
    calls.make = make
    return calls


@pytest.fixture
def world_of(world):
    def make(algorithm: str, tokens: int = 4096, *, exact: bool = True):
        settings = replace(
            world.settings,
            algorithm=ALGORITHMS[algorithm],
            micro_batch_tokens=tokens,
            exact=exact,
        )
        return replace(world, settings=settings)

    return make


@pytest.mark.parametrize("algorithm", ["dpo", "ipo"])
def test_a_second_epoch_asks_nothing(world_of, coordinator, tmp_path, algorithm) -> None:
    counts: list[int] = []
    calls = coordinator(steps_max=2 * EPOCH, make=make_rows)
    live(world_of(algorithm), calls, ReferenceStore(tmp_path / "a.bin"), counts)
    assert counts == [0, 4, 8, NUM_ROWS, NUM_ROWS, NUM_ROWS, NUM_ROWS]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_in_exact_the_chain_does_not_show_what_was_found(
    world_of, coordinator, tmp_path, algorithm
) -> None:
    world = world_of(algorithm, tokens=40)
    path = tmp_path / "a.bin"
    chains = []
    for name in ("cold", "warm", "damaged", "halved", "gone"):
        if name == "damaged":
            data = bytearray(path.read_bytes())
            data[3], data[5 * RECORD_BYTES + 20] = data[3] ^ 1, data[5 * RECORD_BYTES + 20] ^ 1
            path.write_bytes(data)
        if name == "halved":
            path.write_bytes(path.read_bytes()[: 7 * RECORD_BYTES + 11])
        if name == "gone":
            path.unlink()
        calls = coordinator(steps_max=5, make=make_rows)
        live(replace(world, folder=world.folder / name), calls, ReferenceStore(path))
        chains.append(calls.records)
    assert all(chain == chains[0] for chain in chains[1:])


def test_a_kill_with_a_cold_cache_replays_with_a_warm_one(world_of, coordinator, tmp_path) -> None:
    world, path = world_of("dpo"), tmp_path / "a.bin"
    calm = live(
        replace(world, folder=tmp_path / "calm"),
        coordinator(steps_max=6, make=make_rows),
        ReferenceStore(tmp_path / "calm.bin"),
    )
    calls = live(world, coordinator(steps_max=4, make=make_rows), ReferenceStore(path))
    del calls.anchors[-1]
    calls.steps_max = 6
    live(world, calls, ReferenceStore(path))
    assert calls.records == calm.records
    assert not calls.forks


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("exact", [True, False])
def test_losses_are_those_without_a_cache(
    world_of, coordinator, tmp_path, algorithm, exact
) -> None:
    world = world_of(algorithm, exact=exact)
    losses = []
    for name in ("without", "cold", "warm"):
        store = None if name == "without" else ReferenceStore(tmp_path / "a.bin")
        calls = coordinator(steps_max=4, make=make_rows)
        live(replace(world, folder=world.folder / name), calls, store)
        losses.append([metrics["loss"] for metrics in calls.metrics])
    assert losses[1] == pytest.approx(losses[0], abs=2e-5)
    assert losses[2] == pytest.approx(losses[0], abs=2e-5)


def groups(count: int) -> list[GroupTokens]:
    draw = random.Random(3)

    def ids() -> tuple[int, ...]:
        return tuple(draw.randrange(250) for _ in range(draw.randint(1, 9)))

    return [GroupTokens(prompt_ids=ids(), completion_ids=(ids(), ids())) for _ in range(count)]


def test_in_exact_no_number_depends_on_the_cut(model_path, settings, tmp_path) -> None:
    settings = replace(settings, algorithm=ALGORITHMS["dpo"])
    reference = build_reference(model_path, settings, Parallel())
    items = groups(9)
    found = []
    for cut in (1, 2, 4, 9):
        store = ReferenceStore(tmp_path / f"{cut}.bin")
        cache = ReferenceCache(reference, store, Parallel(), alone=True)
        micros = [items[i : i + cut] for i in range(0, len(items), cut)]
        found.append(torch.stack(cache.sums(micros)))
    assert all(torch.equal(one, found[0]) for one in found[1:])


def test_in_fast_what_is_missing_of_a_row_is_scored_together(
    model_path, settings, tmp_path
) -> None:
    settings = replace(settings, algorithm=ALGORITHMS["dpo"])
    reference = Counted(build_reference(model_path, settings, Parallel()))
    items, store = groups(8), ReferenceStore(tmp_path / "a.bin")
    cache = ReferenceCache(reference, store, Parallel(), alone=False)
    first = cache.sums([items[:2]])
    assert reference.count == 1
    both = cache.sums([items[:4], items[4:]])
    assert reference.count == 3
    assert torch.equal(torch.stack(both[:2]), torch.stack(first))
    assert torch.equal(torch.stack(cache.sums([items[4:], items[:4]])[:4]), torch.stack(both[4:]))
    assert reference.count == 3


def test_all_tokens_of_an_item_are_its_key() -> None:
    item = GroupTokens(prompt_ids=(1, 2), completion_ids=((3,), (4, 5)))
    others = [
        replace(item, prompt_ids=(1,), completion_ids=((2, 3), (4, 5))),
        replace(item, completion_ids=((3, 4), (5,))),
        replace(item, completion_ids=((4, 5), (3,))),
        replace(item, completion_ids=((3,),)),
    ]
    keys = [key for one in (item, *others) for key in answer_keys(one)]
    assert len(set(keys)) == len(keys)
    assert answer_keys(item) == answer_keys(replace(item))
    facts = {"model": "a", "dtype": "Float32"}
    names = {store_name(facts), store_name({**facts, "dtype": "BFloat16"})}
    assert len(names | {store_name({**facts, "model": "b"})}) == 3


def key(n: int) -> bytes:
    return n.to_bytes(16, "little")


def test_two_processes_share_a_file(tmp_path) -> None:
    one, other = (ReferenceStore(tmp_path / "a.bin") for _ in range(2))
    one.add({key(1): 0.5})
    other.add({key(2): -1.25})
    assert other.get(key(1)) is None
    other.refresh()
    one.refresh()
    for store in (one, other, ReferenceStore(tmp_path / "a.bin")):
        assert [store.get(key(n)) for n in (1, 2, 3)] == [0.5, -1.25, None]


def test_what_is_not_finite_is_not_kept(tmp_path) -> None:
    store = ReferenceStore(tmp_path / "a.bin")
    store.add({key(1): float("nan"), key(2): float("inf"), key(3): 1.0})
    assert [store.get(key(n)) for n in (1, 2, 3)] == [None, None, 1.0]


def test_a_full_file_takes_no_more_and_says_so(tmp_path, caplog) -> None:
    store = ReferenceStore(tmp_path / "a.bin", bytes_max=3 * RECORD_BYTES)
    store.add({key(1): 1.0, key(2): 2.0})
    store.add({key(3): 3.0, key(4): 4.0})
    store.add({key(5): 5.0})
    assert (tmp_path / "a.bin").stat().st_size == 2 * RECORD_BYTES
    assert caplog.text.count("reference cache full") == 1


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path, caplog) -> None:
    (tmp_path / "file").write_text("")
    store = open_reference_store(tmp_path / "file" / "folder", "a")
    store.add({key(1): 1.0})
    assert store.get(key(1)) == 1.0
    assert "reference cache not usable" in caplog.text


def test_the_least_recently_used_files_make_room(tmp_path) -> None:
    for index, name in enumerate(("old", "newer", "newest")):
        store = open_reference_store(tmp_path, name)
        store.add({key(n): 1.0 for n in range(10)})
        os.utime(tmp_path / f"{name}.bin", (index, index))
    open_reference_store(tmp_path, "old")  # used again: now the last to go
    open_reference_store(tmp_path, "mine", folder_bytes_max=25 * RECORD_BYTES)
    assert {path.stem for path in tmp_path.iterdir()} == {"old", "newest", "mine"}
