"""Handles of a GPU's memory travel as numbers and text, come back as they were, and nothing else is taken for one."""

import json

import pytest
import torch

from rollout_vllm.devices.handles import parse_handle, tell_handle

ARGUMENTS = (
    *(torch.Tensor, torch.Size([3, 4]), (4, 1), 8, torch.UntypedStorage, torch.bfloat16, 0),
    *(b"m" * 66, 4096, 512, False, b"c" * 64, 2, b"e" * 64, True),
)


def told():
    return json.loads(json.dumps(tell_handle(ARGUMENTS)))


def test_what_was_told_comes_back_on_the_receivers_device():
    found = parse_handle(told(), 3)
    assert found == (*ARGUMENTS[:6], 3, *ARGUMENTS[7:])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"size": "3"}, "size: expected at most 8 numbers"),
        ({"size": [1] * 9}, "size: expected at most 8 numbers"),
        ({"size": [-1, 4]}, "size: expected a number from 0"),
        ({"size": [True, 4]}, "size: expected a number from 0"),
        ({"size": [3]}, "1 dimensions has 2 strides"),
        ({"offset": 1.5}, "offset: expected a number"),
        ({"memoryBytes": 1 << 60}, "memoryBytes: expected a number"),
        ({"dtype": "__class__"}, "a handle of '__class__'"),
        ({"memory": "x" * 1000}, "memory: expected base64"),
        ({"memory": "??"}, "base64"),
        ({"memory": ["bbbb"]}, "memory: expected base64"),
        ({"waits": 1}, "waits: expected true or false"),
        ({"more": 1}, "a handle has size"),
    ],
)
def test_anything_else_is_refused_by_its_name(change, why):
    with pytest.raises(ValueError, match=why):
        parse_handle(told() | change, 0)


@pytest.mark.parametrize("said", [None, [], "x", {}])
def test_what_is_no_handle_at_all_is_refused(said):
    with pytest.raises(ValueError, match="a handle has size"):
        parse_handle(said, 0)


def test_a_tensor_without_elements_has_none():
    with pytest.raises(ValueError, match="no memory to name"):
        tell_handle((*ARGUMENTS[:7], None, 0, 0, False, None, None, None, None))
