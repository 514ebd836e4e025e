"""vLLM's interface for trainers with our verification, on both sides as vLLM makes them: only loading into a model is played."""

import json
import os

import pytest
import torch
from mirror_memory import flip_in_memory

from rollout.weights.digest import digest_tensors
from rollout_vllm.transfer import FileTransferEngine

from .trainer_kit import Tensors, begin

pytestmark = [pytest.mark.vllm, pytest.mark.process, pytest.mark.xdist_group("vllm")]


class Engine(FileTransferEngine):
    """Keeps the names of what it would have loaded."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self._digests, self._loaded, self._modules = {}, (), {}
        self.loaded: list[str] = []

    def _owners(self, names):
        return {name: name.rpartition(".")[0] for name in names}

    def _load_all(self, tensors):
        self.loaded = [name for name, _ in tensors]

    def _load_some(self, names, tensors):
        self.loaded = [name for name, _ in tensors]


class Client:
    """Carries what a trainer says as JSON; ``spoil`` happens before an update is asked for."""

    def __init__(self) -> None:
        self.engine, self.calls, self.updates = Engine(), [], []
        self.spoil = lambda: None

    def init_weight_transfer_engine(self, init_info):
        self.engine.init_transfer_engine(self.engine.parse_init_info(init_info))

    def start_weight_update(self):
        self.calls.append("start")

    def update_weights(self, update_info):
        self.updates.append(json.loads(json.dumps(update_info)))
        self.spoil()
        self.engine.update_weights(self.updates[-1])

    def finish_weight_update(self, weight_version=None):
        self.calls.append(weight_version)


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def source():
    torch.manual_seed(0)
    return Tensors({f"layers.{index}.weight": torch.randn(8, 8) for index in range(4)})


@pytest.fixture
def sender(client, source):
    made = begin(client, source)
    yield made
    made.shutdown()


def test_the_first_version_is_sent_whole_and_the_next_as_what_changed(client, source, sender):
    sender.send_weights("step-1")
    assert client.engine.report()["digest"] == digest_tensors(source.tensors)
    assert client.engine.loaded == list(source.tensors)
    source.tensors["layers.2.weight"] = source.tensors["layers.2.weight"] * 2
    sender.send_weights()

    assert client.updates[1]["changed"] == client.engine.loaded == ["layers.2.weight"]
    assert client.engine.report()["digest"] == digest_tensors(source.tensors)
    assert client.calls == ["start", "step-1", "start", None]


def test_a_bit_that_flips_on_the_way_is_refused_and_the_next_send_is_whole(client, source, sender):
    sender.send_weights()
    source.tensors["layers.3.weight"] = source.tensors["layers.3.weight"] * 2
    client.spoil = lambda: flip_in_memory(os.getpid(), -5)
    with pytest.raises(RuntimeError, match="do not sample from it"):
        sender.send_weights()
    assert client.engine.report()["digest"] == ""
    client.spoil = lambda: None
    sender.send_weights()

    assert "changed" not in client.updates[-1]
    assert client.engine.report()["digest"] == digest_tensors(source.tensors)
    assert len(client.calls) == 5


def test_a_server_that_began_anew_is_not_taken_for_the_one_before(client, source, sender):
    sender.send_weights()
    client.engine = Engine()
    with pytest.raises(RuntimeError, match="but nothing is loaded"):
        sender.send_weights()
    sender.send_weights()
    assert client.engine.report()["digest"] == digest_tensors(source.tensors)


def test_tensors_of_other_shapes_are_sent_whole(client, source, sender):
    sender.send_weights()
    source.tensors = {"layers.0.weight": torch.zeros(2, 2)}
    sender.send_weights()
    assert "changed" not in client.updates[-1]
    assert client.engine.report()["digest"] == digest_tensors(source.tensors)


def test_ranks_that_do_not_send_gather_and_ask_nothing(client, source):
    begin(client, source, rank=1).send_weights()
    assert source.seen == list(source.tensors)
    assert (client.calls, client.updates) == ([], [])


def test_a_trainer_without_a_source_is_refused(client):
    with pytest.raises(ValueError, match="expected a WeightSource"):
        begin(client, None)
