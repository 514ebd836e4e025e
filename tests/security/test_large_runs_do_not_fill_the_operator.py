"""The attacker makes hundreds of runs as large as etcd takes them, to fill the memory of operator and webhook."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import PLATFORM, SPEC

from rollout_api.checks.sizes import SPEC_BYTES_MAX, SURELY_SMALL_BYTES, size_bytes
from rollout_api.generate.values import OperatorValues
from rollout_api.presets import fill
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_operator.cache.objects import KEPT_BYTES_MAX, parse_stored
from rollout_operator.controller.queue import Key
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.observe import Observer
from rollout_operator.run.queue.asking import Asker
from rollout_operator.signing import Keyring
from rollout_operator.webhook.review import review

HELPERS = Path(__file__).parent.parent / "rollout_operator"
FILLING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, sys.argv[2])
from test_large_runs_do_not_fill_the_operator import build_live, build_observer, spec_of
from rollout_operator.run.index.store import RunStore
store = RunStore()
observer = build_observer(store)
for size in (1_300_000, 60_000):
    spec = spec_of(size)
    for number in range(400):
        live = build_live(f"r{size}-{number}", spec)
        live["metadata"]["labels"] = {f"k{n}": "v" * 63 for n in range(100)}
        store.put_object("RolloutRun", live)
for number, stored in enumerate(list(store.objects())):
    if number % 16 == 0:
        observer.look(stored)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(int(status["VmHWM"].split()[0]) * 1024)  # what getrusage says begins with the parent's
"""


def spec_of(size):
    """A valid spec with so many bytes of environment."""
    count = -(-size // 16_000)
    env = [{"name": f"E{n}", "value": "x" * (size // count)} for n in range(count)]
    return {**SPEC, "env": env}


def build_live(name, spec):
    meta = {"name": name, "namespace": "a", "uid": name, "resourceVersion": "1", "generation": 1}
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": meta,
        "spec": spec,
    }


def build_observer(store):
    runtime = {"name": "default", "uid": "runtime", "resourceVersion": "1"}
    spec = {"allowedNamespaces": {"from": "All"}}
    store.put_object("ClusterRolloutRuntime", {"metadata": runtime, "spec": spec})
    asker = Asker(client=None, served=lambda: False)
    return Observer(
        client=None, store=store, platform=lambda: PLATFORM, asker=asker, keyring=Keyring
    )


def bytes_of(quantity):
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", quantity).groups()
    return int(number) << {"Ki": 10, "Mi": 20, "Gi": 30}[unit]


def test_hundreds_of_hostile_runs_fit_into_the_memory_that_the_chart_allows():
    folders = [str(HELPERS), str(Path(__file__).parent)]
    filled = subprocess.run(
        [sys.executable, "-c", FILLING, *folders], capture_output=True, text=True, check=True
    )
    limit = bytes_of(OperatorValues().resources.limits["memory"])
    assert int(filled.stdout) < limit / 2


def test_a_spec_that_is_too_large_is_refused_at_the_door_with_its_size_and_what_to_do():
    verdict = review({"operation": "CREATE", "object": build_live("r", spec_of(SPEC_BYTES_MAX))})
    assert not verdict.allowed
    assert re.search(r"spec\.env: the spec has 6\d,\d{3} bytes .* takes 65,536", verdict.message)
    assert "ConfigMap" in verdict.message
    assert review({"operation": "CREATE", "object": build_live("r", spec_of(50_000))}).allowed


@pytest.mark.parametrize("size", [SPEC_BYTES_MAX, 1_300_000])
def test_where_nobody_guards_the_door_the_operator_says_so_and_keeps_little_of_it(size):
    store = RunStore()
    observer = build_observer(store)
    store.put_object("RolloutRun", build_live("r", spec_of(size)))
    stored = store.find(Key(namespace="a", name="r", kind="RolloutRun"))

    observed = observer.look(stored)

    assert observed.spec is None
    assert (observed.gate.reason, observed.gate.stalled) == ("InvalidSpec", True)
    assert "spec.env: the spec has" in observed.gate.message
    assert len(stored.spec) <= KEPT_BYTES_MAX


@pytest.mark.parametrize("kind", ["RolloutSnapshot", "RolloutEndpoint"])
def test_other_kinds_that_a_tenant_may_make_are_kept_no_larger(kind):
    stored = parse_stored(kind, build_live("r", {"text": "x" * 1_300_000}))
    assert len(stored.spec) < 100


def test_what_is_not_kept_still_says_whose_run_it_is():
    spec = {**spec_of(1_300_000), "managedBy": "example.com/other", "suspend": True}
    stored = parse_stored("RolloutRun", build_live("r", spec))
    assert json.loads(stored.spec) == {"managedBy": "example.com/other", "suspend": True}


def test_marks_are_kept_short_and_others_not_at_all():
    live = build_live("r", SPEC)
    live["metadata"]["labels"] = {f"k{n}": "v" for n in range(10_000)}
    live["metadata"]["annotations"] = {"meta.helm.sh/release-name": "x" * 200_000}
    stored = parse_stored("RolloutRun", live)
    assert stored.labels() == {}
    assert stored.tracker().startswith("Helm keeps this object")
    assert len(stored.meta) < 1000


def test_what_is_filled_in_does_not_take_a_small_spec_to_the_bound():
    suite = {"suite": {"builtin": {"name": "arithmetic"}}}
    many = [{**suite, "name": f"e{n}"} for n in range(32)]
    rewards = [{"builtin": {"name": "exact-match"}, "name": f"r{n}"} for n in range(16)]
    spec = {**SPEC, "train": {**SPEC["train"], "rewards": rewards}, "evaluations": many}
    full = fill(RolloutRunSpec.model_validate(spec), engine="vllm")
    grown = size_bytes(full.model_dump(mode="json", exclude_none=True))
    assert size_bytes(spec) < SURELY_SMALL_BYTES
    assert grown < SPEC_BYTES_MAX / 2
