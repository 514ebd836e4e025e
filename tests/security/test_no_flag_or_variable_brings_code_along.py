"""The attacker's wish: a flag or a variable in a manifest that runs code in a process, or opens it to the network."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.engines.vllm.command import refuse_others
from rollout.errors import SpecError
from rollout_api.checks import check_document
from rollout_api.fields.reserved import VLLM_FLAGS, find_bad_argument, is_loader_variable

FLAGS = [
    ("--trust-remote-code",),
    ("--kv-transfer-config={}",),
    ('--kv-events-config={"endpoint":"tcp://*:5557"}',),
    ("-dpa=0.0.0.0",),
    ("--tool-parser-plugin=/x.py",),
    ("-tp=8",),
    ("--nnodes=2",),
    ("--master-port=1",),
    ("--load-format=pt",),
    ("--load-format", "pt"),
    ("--hos=0.0.0.0",),
    ("--block-siz", "1"),
    ("--block_size", "1"),
    ("--block-size", "--trust-remote-code"),
    ("--block-size=--trust-remote-code",),
    ("--block-size", "64", "positional"),
    ("--quantization", "/tmp/x.py"),
    ("--quantization", "@/etc/passwd"),
    ('--quantization={"a":1}',),
    ("--compilation-config", "x"),
    ("--enforce-eager", ""),
    ("---block-size",),
    ("--",),
    ("",),
]


@pytest.mark.parametrize("arguments", FLAGS)
def test_a_flag_does_more_than_tune_the_server(arguments):
    with pytest.raises(SpecError, match="extraArguments"):
        refuse_others(arguments)


@given(st.lists(st.text(max_size=30), max_size=4))
def test_nothing_but_known_flags_and_plain_values_gets_through(arguments):
    if find_bad_argument(arguments) is None:
        flags = [one for one in arguments if one.startswith("-")]
        assert all(one.removeprefix("--").split("=")[0] in VLLM_FLAGS for one in flags)
        assert len(arguments) <= 2 * len(flags)


def test_what_tunes_the_server_is_taken():
    refuse_others(("--block-size", "64", "--enforce-eager", "--quantization=fp8"))


LOADERS = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME")


@pytest.mark.parametrize("place", ["spec", "learner", "actors"])
@pytest.mark.parametrize("kind", ["value", "valueFrom"])
@pytest.mark.parametrize("name", [*LOADERS, "PATH", "BASH_ENV", "DYLD_INSERT_LIBRARIES"])
def test_a_variable_loads_a_library(place, kind, name):
    item = {"name": name}
    secret = {"secretKeyRef": {"name": "s", "key": "k"}}
    item |= {"value": "/x"} if kind == "value" else {"valueFrom": secret}
    spec = {
        "model": {"uri": "rollout://tiny-adder"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "maxSteps": 1,
        },
    }
    (spec if place == "spec" else spec.setdefault(place, {}))["env"] = [item]
    where = "env" if place == "spec" else f"{place}.env"
    document = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
    problems = check_document(document | {"metadata": {"name": "x"}, "spec": spec})
    found = [(one.field, one.reason) for one in problems]
    assert (f"spec.{where}[0].name", "ReservedName") in found


def test_ordinary_variables_are_free():
    assert not any(map(is_loader_variable, ("HF_TOKEN", "NCCL_DEBUG", "PYTHONUNBUFFERED", "TZ")))
