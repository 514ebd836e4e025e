"""vLLM's own backends with our verification, to the last call: a played device has the memory. Refused, until a real one has."""

import json
import os
from types import SimpleNamespace

import pytest
import requests
import torch
from vllm.distributed.weight_transfer import ipc_engine, nccl_engine
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from rollout.weights.digest import digest_tensors
from rollout_vllm.devices.verified import (
    UNPROVEN,
    PlainHandles,
    UnprovenTransferError,
    VerifiedIpc,
    VerifiedNccl,
)
from rollout_vllm.register import register_transfers

pytestmark = [pytest.mark.vllm, pytest.mark.process, pytest.mark.xdist_group("vllm")]

DEVICE = "GPU-played"


class Tensors(WeightSource):
    """Tensors by name."""

    def __init__(self, tensors) -> None:
        self.tensors = tensors

    def metadata(self):
        return [ParamMeta(name, one.dtype, tuple(one.shape)) for name, one in self.tensors.items()]

    def __iter__(self):
        return iter(self.tensors.items())


class Model:
    """Keeps what its loader is given."""

    def __init__(self) -> None:
        self.loaded = {}

    def load_weights(self, weights):
        self.loaded |= {name: tensor.clone() for name, tensor in weights}


class Client:
    """Carries what a trainer says as JSON to an engine in this process."""

    def __init__(self, engine, spoil=lambda: None) -> None:
        self.engine, self.spoil, self.said = engine, spoil, []

    def _carried(self, what):
        self.said.append(json.dumps(what))
        return json.loads(self.said[-1])

    def init_weight_transfer_engine(self, init_info):
        if isinstance(self.engine, VerifiedIpc):
            self.engine.init_transfer_engine(self.engine.parse_init_info(self._carried(init_info)))

    def start_weight_update(self):
        self.engine.start_weight_update()

    def update_weights(self, update_info):
        carried = self._carried(update_info)
        self.spoil()
        self.engine.update_weights(carried)

    def finish_weight_update(self, weight_version=None):
        self.engine.finish_weight_update()


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return {"up": torch.randn(8, 4).bfloat16(), "norm": torch.randn(4), "down": torch.randn(4, 8)}


@pytest.fixture
def memory(monkeypatch):
    """A device whose memory is named by 64 bytes; it is what the last calls of torch would reach."""
    held = {}

    def reduce(tensor):
        handle = os.urandom(64)
        held[handle] = tensor
        return None, (
            *(torch.Tensor, tensor.size(), tensor.stride(), 0, torch.UntypedStorage),
            *(tensor.dtype, 0, handle, tensor.nbytes, 0, False, b"c" * 64, 0, b"e" * 64, False),
        )

    def rebuild(*arguments):
        found = held[arguments[7]]
        assert (found.size(), found.dtype) == (arguments[1], arguments[5])
        return found

    properties = SimpleNamespace(uuid=DEVICE)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    monkeypatch.setattr(ipc_engine, "reduce_tensor", reduce)
    monkeypatch.setattr(ipc_engine, "rebuild_cuda_tensor", rebuild)
    return held


def played(kind, monkeypatch):
    """An engine as a server would make it, of which loading by layers is left out: it needs vLLM's own model."""
    configuration = SimpleNamespace(parallel_config=None, model_config=None)
    monkeypatch.setattr(kind.__mro__[2], "start_weight_update", lambda _: None)
    monkeypatch.setattr(kind.__mro__[2], "finish_weight_update", lambda _: None)
    proven = type("Played", (kind,), {"is_proven": True})
    return proven(None, configuration, torch.device("cpu"), Model())


def send_by_ipc(client, tensors):
    started = ipc_engine.IPCTrainerInitInfo(rank=0)
    sender = ipc_engine.IPCTrainerWeightTransferEngine.trainer_init(
        started, client=PlainHandles(client), source=Tensors(tensors)
    )
    sender.send_weights()


def test_memory_of_a_device_is_loaded_hashed_and_named_without_a_pickle(
    memory, monkeypatch, tensors
):
    engine = played(VerifiedIpc, monkeypatch)
    client = Client(engine)
    send_by_ipc(client, tensors)

    assert all(torch.equal(engine.model.loaded[name], one) for name, one in tensors.items())
    assert engine.report()["digest"] == digest_tensors(tensors)
    assert engine.report()["num_tensors"] == len(tensors)
    sent = json.loads(client.said[-1])
    posted = []
    answer = SimpleNamespace(raise_for_status=lambda: None)
    monkeypatch.setattr(requests, "post", lambda _, json, timeout: posted.append(json) or answer)
    HTTPVLLMWeightSyncClient("http://127.0.0.1").update_weights(sent)
    assert posted == [{"update_info": sent}]  # vLLM's client makes no pickle of it


def test_a_bit_that_flips_in_the_devices_memory_is_seen_in_the_digest(memory, monkeypatch, tensors):
    def flip():
        next(iter(memory.values())).view(torch.uint8)[0, 0] ^= 4

    wanted = digest_tensors(tensors)
    engine = played(VerifiedIpc, monkeypatch)
    send_by_ipc(Client(engine, flip), tensors)
    assert engine.report()["digest"] != wanted


def test_a_pickle_and_what_is_no_handle_are_not_read(memory, monkeypatch):
    engine = played(VerifiedIpc, monkeypatch)
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    said = {"names": [], "dtype_names": [], "shapes": []}
    for handles in ({"ipc_handles_pickled": "gASVAAAA"}, {"ipc_handles": []}):
        with pytest.raises(ValueError, match="a pickle is not read"):
            engine.update_weights(said | handles)
    for handles in (None, "x", [1], [{DEVICE: {}}]):
        with pytest.raises(ValueError, match="a handle"):
            engine.update_weights(said | {"handles": handles})


def test_what_is_broadcast_is_hashed_before_it_is_loaded(monkeypatch, tensors):
    engine = played(VerifiedNccl, monkeypatch)
    sent = iter(tensors.values())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    group = SimpleNamespace(broadcast=lambda into, src, stream: into.copy_(next(sent)))
    engine.model_update_group = group
    meta = Tensors(tensors).metadata()
    engine.start_weight_update()
    engine.update_weights(
        {
            "names": [one.name for one in meta],
            "dtype_names": [str(one.dtype).removeprefix("torch.") for one in meta],
            "shapes": [list(one.shape) for one in meta],
        }
    )

    assert all(torch.equal(engine.model.loaded[name], one) for name, one in tensors.items())
    assert engine.report()["digest"] == digest_tensors(tensors)
    assert isinstance(engine.model, Model)


@pytest.mark.parametrize("backend", ["rollout-nccl", "rollout-ipc"])
def test_a_server_that_asks_for_one_is_refused_by_name(backend):
    register_transfers()
    configuration = SimpleNamespace(parallel_config=None, model_config=None)
    with pytest.raises(UnprovenTransferError, match=UNPROVEN[:40]):
        WeightTransferEngineFactory.create_engine(
            SimpleNamespace(backend=backend), configuration, torch.device("cpu"), Model()
        )


def test_vllms_engines_still_have_the_calls_that_are_played():
    assert callable(nccl_engine.NCCLWeightTransferEngine.receive_weights)
    assert (
        nccl_engine.NCCLWeightTransferEngine.init_info_cls.__name__ == "NCCLWeightTransferInitInfo"
    )
