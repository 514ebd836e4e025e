"""What a decode step does on a GPU, followed without one: shapes and devices only (fake tensors of torch).

An operation that needs a number from the device raises there, as one that waits for it would stop a capture.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from rollout.engines.embedded.batch import BatchSize
from rollout.engines.embedded.config import read_config
from rollout.engines.embedded.decoder import CompactDecoder
from rollout.engines.embedded.sampling import Sampler
from rollout.engines.embedded.steps.capture import repeat_plainly
from rollout.types import SamplingParams

GPU = torch.device("cuda", 0)
SAMPLING = SamplingParams(max_new_tokens=30, temperature=0.7, min_new_tokens=3, stop_token_ids=(4,))


class Told(TorchDispatchMode):
    """The devices of all that was computed, and the number of attention calls."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: set[torch.device] = set()
        self.attended = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(one, torch.Tensor):
                self.devices.add(one.device)
        self.attended += "flash_attention" in str(func)
        return out


def without_values(values, *, dtype=None, device=None):
    tensor = REAL_TENSOR(values, dtype=dtype)
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


REAL_TENSOR = torch.tensor


@pytest.fixture(scope="module", autouse=True)
def _autograd_has_counted_its_devices():
    """At its first backward autograd starts a thread for each device, fake ones too, and no test could fork any more."""
    torch.ones(1, requires_grad=True).sum().backward()


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3"])
def test_a_step_runs_on_the_device_alone(tiny_model, publish_model, tmp_path, monkeypatch, kind):
    model = tiny_model(kind)
    publish_model(model, tmp_path)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    monkeypatch.setattr(torch, "tensor", without_values)  # fake tensors copy no value to a GPU
    with FakeTensorMode(), torch.inference_mode():
        weights = {name: torch.empty(shape) for name, shape in shapes.items()}
        decoder = CompactDecoder(read_config(tmp_path), torch.bfloat16, GPU, repeat_plainly)
        decoder.load(weights)
        decoder.load(weights)  # in the place of the last ones
        batch = decoder.open(
            [(3, 4, 5), (6, 7), (9, 9, 9, 9)], BatchSize(group_size=4, new_tokens_max=30)
        )
        sampler = Sampler(SAMPLING, decoder.vocab_size)
        batch.draw_with(sampler, torch.zeros(30, 12, dtype=torch.float64))
        batch._draw_one(sampler)
        batch._drawn = 1

        with Told() as told:
            batch._draw_one(sampler)

    assert told.devices == {GPU}
    assert told.attended == 2 * model.config.num_hidden_layers
