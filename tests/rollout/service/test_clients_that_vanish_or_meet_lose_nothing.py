"""Clients that vanish, and clients that meet on one model: processes with the client from the package index, as it is.

Such a client counts its own calls. One that takes a model over is told where it stands and counts on from there; one that does
not know of the other takes numbers that are taken, and is told so.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import tinker
from serve_kit import ServedTraining
from tinker import types

pytestmark = [pytest.mark.process, pytest.mark.slow]

SEQUENCE = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
CALLS = 12
OPEN_FILES = 256
"""What the service begins with; it takes as many as it may have."""
HEAD = "rollout_chain_head:unique"

PROGRAM = """
import json, os, sys, time
import tinker
from tinker import types

def say(**facts):
    print(json.dumps(facts), flush=True)

def datum(tokens):
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )

SEQUENCE = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
client = tinker.ServiceClient(base_url=os.environ["URL"], api_key=os.environ["KEY"])
"""

VANISHES = (
    PROGRAM
    + """
asked = client.create_lora_training_client(base_model="tiny", rank=4, seed=3, train_unembed=False)
model = asked.result(60) if hasattr(asked, "result") else asked
metrics = model.forward_backward([datum(SEQUENCE)], "cross_entropy").result(60).metrics
say(model=model.model_id, head=metrics["rollout_chain_head:unique"])
time.sleep(600)
"""
)

MEETS = (
    PROGRAM
    + """
who, calls = int(sys.argv[2]), int(sys.argv[3])
model = tinker.TrainingClient(client.holder, 0, sys.argv[1], info=None)
say(ready=who)
sys.stdin.readline()
for number in range(1, calls + 1):
    if number % 2:
        call = model.forward_backward([datum(SEQUENCE[who:])], "cross_entropy")
    else:
        call = model.optim_step(types.AdamParams(learning_rate=1e-3 * (1 + who)))
    try:
        say(number=number, head=call.result(120).metrics["rollout_chain_head:unique"])
    except tinker.APIStatusError as error:
        say(number=number, status=error.status_code, said=str(error))
"""
)


def datum(tokens=SEQUENCE):
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )


@pytest.fixture(scope="module")
def served():
    mine = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryDirectory() as home:
        found = ServedTraining(home=Path(home), more=("--models-in-memory", "1"), plain=True)
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, mine[1]))
        try:
            found.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, mine)
        yield found
        found.kill()


@pytest.fixture(scope="module")
def client(served, no_telemetry):
    found = tinker.ServiceClient(base_url=served.url, api_key=served.key)
    yield found
    found.close("success").result(60)


def begin(served, program, *words):
    env = {**os.environ, "URL": served.url, "KEY": served.key, "TINKER_TELEMETRY": "0"}
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )


def new_model(client, seed=3):
    asked = client.create_lora_training_client(
        base_model="tiny", rank=4, seed=seed, train_unembed=False
    )
    return asked.result(60) if hasattr(asked, "result") else asked


def taken_over(client, model_id, calls):
    """A client for a model that another one made, which counts on from where the model stands."""
    found = tinker.TrainingClient(client.holder, 0, model_id, info=None)
    found._request_id_counter = found._turn_counter = calls
    return found


def standing(served, model_id):
    url = f"{served.url}/api/v1/rollout/models/{model_id}"
    with urlopen(Request(url, headers={"X-API-Key": served.key}), timeout=60) as reply:
        return json.load(reply)


def step(model, rate=1e-2):
    return model.optim_step(types.AdamParams(learning_rate=rate)).result(120).metrics


def test_a_gradient_outlives_its_client_and_another_process_takes_the_step(served, client):
    calm = new_model(client)
    calm.forward_backward([datum()], "cross_entropy").result(60)
    wanted = step(calm)
    process = begin(served, VANISHES)
    said = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    others = new_model(client, seed=9)  # for which the one of the dead client leaves memory
    others.forward_backward([datum()], "cross_entropy").result(60)
    step(others)
    state = standing(served, said["model"])
    assert (state["calls"], state["waiting"], state["broken"]) == (1, [], "")
    heir = taken_over(client, said["model"], state["calls"])
    assert step(heir) == wanted
    heir.forward_backward([datum()], "cross_entropy").result(60)
    assert standing(served, said["model"])["calls"] == 3


def let_meet(served, model_id):
    """What two processes say, of one model, when both begin at its first number."""
    programs = [begin(served, MEETS, model_id, str(who), str(CALLS)) for who in (0, 1)]
    for program in programs:
        assert "ready" in json.loads(program.stdout.readline())
    for program in programs:
        program.stdin.write("go\n")
        program.stdin.flush()
    said = [[json.loads(line) for line in program.stdout] for program in programs]
    assert [program.wait(120) for program in programs] == [0, 0]
    return said


def test_of_two_processes_on_one_model_each_number_is_one_call_and_the_other_is_told(
    served, client
):
    model = new_model(client)
    said = let_meet(served, model.model_id)
    made = {}
    for who, line in ((who, line) for who, lines in enumerate(said) for line in lines):
        if "head" in line:
            assert line["number"] not in made, "two calls have one number"
            made[line["number"]] = (who, line["head"])
        else:
            words = f"seq_id {line['number']} of {model.model_id} was another call"
            assert (line["status"], words in line["said"]) == (400, True)
    assert sorted(made) == list(range(1, CALLS + 1))
    assert sum(map(len, said)) == 2 * CALLS
    assert standing(served, model.model_id)["calls"] == CALLS
    again = new_model(client)  # one client alone that sends what was made comes to the same
    for number, (who, head) in sorted(made.items()):
        if number % 2:
            call = again.forward_backward([datum(SEQUENCE[who:])], "cross_entropy")
        else:
            call = again.optim_step(types.AdamParams(learning_rate=1e-3 * (1 + who)))
        assert call.result(120).metrics[HEAD] == head


def test_a_client_that_counts_past_a_hole_is_told_which_call_is_missing_and_others_go_on(
    served, client
):
    model = new_model(client)
    ahead = taken_over(client, model.model_id, 1)
    waiting = ahead.optim_step(types.AdamParams(learning_rate=1e-2))
    others = new_model(client, seed=9)
    others.forward_backward([datum()], "cross_entropy").result(60)
    assert standing(served, model.model_id)["calls"] == 0
    model.forward_backward([datum()], "cross_entropy").result(60)
    assert waiting.result(120).metrics["num_gathered:sum"] == 1


def test_connections_on_which_nothing_comes_keep_nobody_out(served, client):
    model = new_model(client)
    idle = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(2 * OPEN_FILES)]
    try:
        for one in idle[::2]:
            one.sendall(b"POST /api/v1/optim_step HTTP/1.1\r\nContent-Length: 100000000\r\nX-A")
        fresh = tinker.ServiceClient(base_url=served.url, api_key=served.key)
        new_model(fresh, seed=4).forward_backward([datum()], "cross_entropy").result(60)
        fresh.close("success").result(60)
        model.forward_backward([datum()], "cross_entropy").result(60)
    finally:
        for one in idle:
            one.close()
