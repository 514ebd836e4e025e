"""A trainer's tensors become one file in memory: whole, hashed as they lie, refused where they are not what was declared."""

import pytest
import torch
from safetensors import safe_open

from rollout.weights.digest import digest_tensors
from rollout_vllm.sending import layout
from rollout_vllm.sending.layout import Declared, VersionMemory


def tensors(seed=0):
    """Of several sizes of numbers, so that some begin at odd places."""
    torch.manual_seed(seed)
    return {
        "b": torch.randn(7, 3).bfloat16(),
        "a": torch.randint(0, 255, (5,), dtype=torch.uint8),
        "d": torch.randn(4, 6).T,
        "c": torch.randn(2, 2, 2),
        "scale": torch.tensor(1.5),
    }


def declare(given):
    return [Declared(name, one.dtype, tuple(one.shape)) for name, one in given.items()]


def lay_out(memory, given):
    return memory.lay_out(declare(given), given.items())


def read(path):
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping


def test_what_is_read_is_what_was_given_and_has_its_digest():
    given, memory = tensors(), VersionMemory()
    version = lay_out(memory, given)
    found = read(version.path)
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], one) for name, one in given.items())
    assert version.digest == digest_tensors(given) == digest_tensors(found)


def test_the_next_version_lies_where_the_last_one_did_and_another_layout_elsewhere():
    memory = VersionMemory()
    first = lay_out(memory, tensors())
    second = lay_out(memory, tensors(1))
    assert second.path == first.path
    assert second.digest == digest_tensors(read(second.path)) != first.digest
    fewer = {"a": torch.zeros(3)}
    third = lay_out(memory, fewer)
    assert third.digest == digest_tensors(read(third.path)) == digest_tensors(fewer)
    memory.close()
    memory.close()
    with pytest.raises(FileNotFoundError):
        third.path.stat()


def changed_shape(given):
    return given | {"b": given["b"].T}


def changed_dtype(given):
    return given | {"c": given["c"].double()}


def changed_order(given):
    return dict(reversed(given.items()))


def one_more(given):
    return given | {"z": torch.zeros(1)}


def one_less(given):
    return {name: one for name, one in given.items() if name != "scale"}


@pytest.mark.parametrize(
    "change", [changed_shape, changed_dtype, changed_order, one_more, one_less]
)
def test_tensors_that_are_not_what_was_declared_are_refused(change):
    given = tensors()
    with pytest.raises(ValueError, match="declared"):
        VersionMemory().lay_out(declare(given), change(given).items())


def test_two_tensors_of_one_name_and_none_at_all_are_refused():
    one = Declared("a", torch.float32, (2,))
    for declared in ([one, one], []):
        with pytest.raises(ValueError, match="each needs its own"):
            VersionMemory().lay_out(declared, [])


def test_what_has_no_room_is_refused_before_it_is_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "MEMORY", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemTotal: 4096 kB\nMemAvailable: 1 kB\n")
    given = {"a": torch.zeros(1000)}
    with pytest.raises(OSError, match=r"more than 0\.5 of the 1024 bytes"):
        lay_out(VersionMemory(), given)
