"""Calls in a drawn order with bodies that were spoilt at drawn places: never a failure of the service, never a model that a
refusal has changed, and the next good call is served."""

from __future__ import annotations

import json
import random

import pytest
from service_kit import PREFIX, PROTOBUF_TYPE, SEQUENCE, STEP, WIRE, sequence_datum

ODD = (
    *(None, True, -1, 0, 2**31, 2**63, -(2**70), 1e308, -0.5, "", "a", "\x00", "é" * 50),
    *([], [[]], {}, {"a": {}}, [None] * 3, "9" * 5000, float("nan"), float("inf")),
)
ROUNDS = 60


def spoilt(draw, value):
    """A value with one part of it replaced, left out or added to."""
    if isinstance(value, dict) and value and draw.random() < 0.8:
        name = draw.choice(sorted(value))
        found = dict(value)
        how = draw.random()
        if how < 0.15:
            del found[name]
        elif how < 0.3:
            found[f"{name}_more"] = draw.choice(ODD)
        else:
            found[name] = spoilt(draw, found[name])
        return found
    if isinstance(value, list) and value and draw.random() < 0.7:
        at = draw.randrange(len(value))
        return [*value[:at], spoilt(draw, value[at]), *value[at + 1 :]]
    return draw.choice(ODD)


def torn(draw, body):
    """Bytes with a few of them changed, cut out or put in."""
    found = bytearray(body)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(found) + 1)
        how = draw.randrange(4)
        if how == 0:
            found[at : at + 1] = bytes([draw.randrange(256)])
        elif how == 1:
            del found[at : at + draw.randint(1, 8)]
        elif how == 2:
            found[at:at] = draw.randbytes(draw.randint(1, 8))
        else:
            del found[at:]
        if not found:
            break
    return bytes(found)


class Attacker:
    """Sends good calls and spoilt ones, and keeps account of what the service makes of them."""

    def __init__(self, client, seed):
        self.client = client
        self.draw = random.Random(seed)
        self.sampler = ""
        self.samples = 0

    def good(self, seq):
        """A call in the model's order, of a drawn kind: its route and its body."""
        model = self.client.model
        kinds = {
            "optim_step": {"model_id": model, "seq_id": seq, "adam_params": STEP},
            "save_weights": {"model_id": model, "seq_id": seq, "path": f"s{seq}"},
            "load_weights": {
                "model_id": model,
                "seq_id": seq,
                "path": f"tinker://{model}/weights/first",
                "optimizer": True,
            },
            "save_weights_for_sampler": {"model_id": model, "seq_id": seq, "path": f"w{seq}"},
            "forward_backward": None,
        }
        path = self.draw.choice(sorted(kinds))
        return path, kinds[path]

    def others(self):
        """A call that is of no model's order."""
        session = self.client.session
        self.samples += 1
        kinds = {
            "create_session": {"sdk_version": "0", "tags": ["a"], "user_metadata": {"a": "b"}},
            "create_model": {
                "session_id": session,
                "model_seq_id": 0,
                "base_model": "tiny",
                "lora_config": {"rank": 4, "seed": 1, "train_unembed": False},
            },
            "asample": {
                "sampling_session_id": self.sampler,
                "seq_id": self.samples,
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6]}]},
                "sampling_params": {"max_tokens": 1, "stop": [7], "top_k": 3, "top_p": 0.5},
                "num_samples": 1,
                "topk_prompt_logprobs": 2,
                "target_prompt_logprobs": {"data": [3], "shape": [1, 1], "dtype": "int64"},
            },
            "create_sampling_session": {
                "session_id": session,
                "sampling_session_seq_id": self.samples,
                "base_model": "tiny",
            },
            "retrieve_future": {"request_id": f"{self.client.model}#1"},
            "get_info": {"model_id": self.client.model},
            "weights_info": {"tinker_path": f"tinker://{self.client.model}/weights/first"},
            "session_heartbeat": {"session_id": session},
            "telemetry": {"events": [{"a": 1}]},
        }
        path = self.draw.choice(sorted(kinds))
        return path, kinds[path]

    def wire(self, seq):
        ask = WIRE["ForwardBackwardRequest"](
            model_id=self.client.model,
            seq_id=seq,
            loss_fn="cross_entropy",
            data=[sequence_datum(), sequence_datum(SEQUENCE[::-1])],
        )
        return ask.SerializeToString()

    async def send(self, path, body):
        kind = PROTOBUF_TYPE if path == "forward_backward" else "application/json"
        headers = {"X-API-Key": self.client.key, "Content-Type": kind}
        async with self.client.http.post(f"{PREFIX}/{path}", data=body, headers=headers) as reply:
            said = await reply.read()
            assert reply.status != 500, (path, body[:500], said)
            return reply.status, said

    async def attack(self, seq):
        """One spoilt call. It may have been good enough to take the place: whatever the answer is, no failure."""
        path, body = self.good(seq) if self.draw.random() < 0.6 else self.others()
        if path == "forward_backward":
            sent = torn(self.draw, self.wire(seq))
        elif self.draw.random() < 0.2:
            sent = torn(self.draw, json.dumps(body).encode())
        else:
            sent = json.dumps(spoilt(self.draw, body)).encode()
        status, said = await self.send(path, sent)
        if status != 200:
            return None
        return path, said

    async def settle(self, answered):
        """The answer of what was taken in: a refusal of the caller's, or an answer, never a failure of the service."""
        path, said = answered
        ack = json.loads(said)
        if path == "retrieve_future" or "request_id" not in ack:
            return
        found = await self.client.answer((200, ack))
        if isinstance(found, dict) and "error" in found:
            assert found["category"] == "user", (path, found)


async def begun(client, seed):
    found = Attacker(client, seed)
    await client.begin()
    await client.answer(await client.save_state("first", seq=1))
    found.sampler = (await client.answer(await client.save(seq=2)))["sampling_session_id"]
    return found


@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 15))]
)
async def test_spoilt_calls_fail_nobody_and_change_nothing_that_they_do_not_own(service, seed):
    running = await service()
    client, calm = running.client("mine"), running.client("yours")
    attacker, watcher = await begun(client, seed), await begun(calm, seed)
    model = client.model
    for number in range(ROUNDS):
        client.model = model
        before = await client.state()
        seq = before["calls"] + 1
        taken = await attacker.attack(seq)
        client.model = model
        if taken is None:
            assert await client.state() == before
        else:
            await drained(client)  # a number that was spoilt may have left a hole before it
            await attacker.settle(taken)
        client.model = model
        seq = (await client.state())["calls"] + 1
        await client.answer(await client.backward([sequence_datum()], seq=seq))
        if number % 10 == 0:
            said = await calm.answer(
                await calm.backward([sequence_datum()], seq=(await calm.state())["calls"] + 1)
            )
            assert said.loss_fn_outputs
            assert (await calm.answer(await calm.sample(watcher.sampler, seq=number))).sequences
    assert (await client.state())["broken"] == (await calm.state())["broken"] == ""


async def drained(client):
    """Until no call of the model waits for its turn; one that left a hole before it is followed by good ones."""
    while (state := await client.state())["waiting"]:
        if state["missing"] is not None:
            await client.answer(await client.step(seq=state["missing"]))
