"""vLLM's interface for trainers, with our verification: the server refuses what was not sent so, and the next send mends it.

A real server; every test sends what it needs.
"""

import os

import httpx
import pytest
import torch
from mirror_memory import flip_in_memory
from vllm.distributed.weight_transfer.base import ModuleSource

from rollout.engines.vllm.command import socket_path
from rollout.engines.vllm.engine import REPORT
from rollout.engines.vllm.wire import build_generate_body, parse_completion, parse_loaded
from rollout.weights.digest import digest_tensors, load_weights
from rollout_vllm.gate import HEADER

from .conftest import ask
from .trainer_kit import Tensors, begin

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("vllm"),
]

KEY = "model.layers.0.self_attn.k_proj.weight"
LAST = "model.norm.weight"
"""Of the file: a bit that flips in what has not changed is not loaded, and so not looked for."""


class Client:
    """As vLLM's own for HTTP, over the server's socket; ``spoil`` happens before an update is asked for."""

    def __init__(self, engine) -> None:
        transport = httpx.HTTPTransport(uds=str(socket_path(engine._server.private_dir)))
        self._client = httpx.Client(
            transport=transport,
            base_url="http://vllm",
            timeout=120,
            headers={"Connection": "close"},
        )
        self.spoil = lambda: None
        self.updates: list[dict] = []

    def post(self, path, body=None, version=None):
        headers = None if version is None else {HEADER: version}
        answer = self._client.post(path, json=body, headers=headers)
        answer.raise_for_status()
        return answer.content

    def init_weight_transfer_engine(self, init_info):
        self.post("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self):
        self.post("/start_weight_update")

    def update_weights(self, update_info):
        self.updates.append(update_info)
        self.spoil()
        self.post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version=None):
        self.post("/finish_weight_update", {"weight_version": weight_version})

    def digest(self):
        return parse_loaded(self.post("/collective_rpc", REPORT))

    def sample(self, version):
        """Tokens and logprobs of one prompt under a version that the server lets go on."""
        self.post("/resume", version=version)
        [seed, *_] = ask(12, 1).seeds
        body = build_generate_body(ask(12, 1, max_new_tokens=4), seed)
        found = parse_completion(self.post("/inference/v1/generate", body, version))
        self.post("/pause?mode=abort&clear_cache=true")
        return found.token_ids, found.logprobs


@pytest.fixture
def client(exact_engine):
    made = Client(exact_engine)
    made.post("/pause?mode=abort&clear_cache=true")
    yield made
    made.post("/resume")


@pytest.fixture
def source(untied_policies):
    return Tensors(load_weights(untied_policies.first.weights))


async def test_a_server_serves_what_was_sent_as_if_it_had_loaded_it_from_a_file(
    client, exact_engine, untied_policies, source
):
    sender = begin(client, source)
    sender.send_weights("0.7")
    sent = client.sample("0.7")
    assert client.digest() == untied_policies.first.version.digest

    await exact_engine.load(untied_policies.first.version, untied_policies.first.weights)
    assert sent == client.sample("0.0")
    sender.shutdown()


async def test_the_second_time_the_modules_that_changed_are_sent_for_alone(client, source):
    sender = begin(client, source)
    sender.send_weights("0.1")
    before = client.sample("0.1")
    source.tensors[KEY] = source.tensors[KEY] * 1.5
    sender.send_weights("0.2")

    assert "changed" not in client.updates[0]
    assert client.updates[1]["changed"] == [KEY]
    assert client.digest() == digest_tensors(source.tensors)
    after = client.sample("0.2")
    sender.shutdown()
    again = begin(client, source)
    again.send_weights("0.3")
    assert before != after == client.sample("0.3")
    again.shutdown()


async def test_a_bit_that_flips_on_the_way_is_refused_and_the_next_send_is_whole(client, source):
    sender = begin(client, source)
    sender.send_weights("0.1")
    source.tensors[LAST] = source.tensors[LAST] * 1.5
    client.spoil = lambda: flip_in_memory(os.getpid(), -5)
    with pytest.raises(httpx.HTTPStatusError):
        sender.send_weights("0.2")
    assert client.digest() == ""
    client.spoil = lambda: None
    sender.send_weights("0.3")

    assert "changed" not in client.updates[-1]
    assert client.digest() == digest_tensors(source.tensors)
    sender.shutdown()


async def test_a_server_that_another_has_loaded_is_not_taken_for_ones_own(
    client, exact_engine, untied_policies, source
):
    sender = begin(client, source)
    sender.send_weights("0.1")
    other = untied_policies.other
    await exact_engine.load(other.version, other.weights)
    client.post("/pause?mode=abort&clear_cache=true")
    with pytest.raises(httpx.HTTPStatusError):
        sender.send_weights("0.2")
    sender.send_weights("0.3")
    assert client.digest() == digest_tensors(source.tensors)
    sender.shutdown()


async def test_a_module_of_torch_is_a_source(client, untied_policies):
    sender = begin(client, ModuleSource(untied_policies.first.model))
    sender.send_weights("0.4")
    with torch.no_grad():
        named = dict(untied_policies.first.model.named_parameters())
        assert client.digest() == digest_tensors(
            {name: one.detach() for name, one in named.items()}
        )
    sender.shutdown()
