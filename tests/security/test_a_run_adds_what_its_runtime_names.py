"""The attacker adds to pods, images and storage what the platform never meant, or takes another team's runtime."""

import json
from typing import cast

import pytest
from pydantic import ValidationError
from worlds import PLATFORM, SPEC, World

from rollout_api.checks.pods.allowed import covers
from rollout_api.v1alpha1.pods.pods import Toleration
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.runtime import ClusterRuntimeSpec, RuntimeSpec
from rollout_operator.controller.queue import Key
from rollout_operator.kube.client import KubeClient
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.observe import Observer
from rollout_operator.run.plan.preconditions.allowed import check_allowed, check_namespace
from rollout_operator.run.queue.asking import Asker
from rollout_operator.signing import Keyring

DIGEST = f"@sha256:{'a' * 64}"
LISTS = {
    "annotations": ["note", "team.example/"],
    "labels": ["cost-centre", "team.example/"],
    "images": ["registry.example:5000/team/", "ghcr.example/one", f"ghcr.example/two:1{DIGEST}"],
    "storage": [
        *("s3://shared/$(namespace)/", "s3://exact/runs", "https://s3.example:9000"),
        *("https://data.example/team/", "gs://shared/$(namespace)/"),
    ],
    "wheels": ["https://wheels.example/team/", "s3://shared/$(namespace)/", "file:///wheels/a.whl"],
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "priorityClasses": ["research"],
    "hosts": ["docs.example", "docs.python.org", "api.example:8443"],
}


def image(reference):
    return {"actors": {"engine": {"vllm": {"image": reference}}}}


def code(reference):
    return {"code": {"image": {"reference": reference}}}


def agent(reference):
    return train_in({"agent": {"command": ["a"], "image": reference}})


def harbor(reference):
    parameters = [{"name": "tasks", "value": "t"}, {"name": "image", "value": reference}]
    module = "rollout.environments.adapters.harbor"
    return train_in({"python": {"module": module, "className": "Harbor", "parameters": parameters}})


def train_in(environment):
    given = {"algorithm": {"grpo": {}}, "maxSteps": 1, "environment": environment}
    return {"train": {**given, "data": {"jsonl": {"uri": "a.jsonl"}}}}


def pages(*hosts):
    return train_in({"builtin": {"name": "arithmetic"}, "http": {"hosts": hosts}})


def wheel(uri):
    return {"code": {"wheel": {"uri": uri, "digest": f"sha256:{'a' * 64}"}}}


def storage(uri):
    return {"storage": {"uri": uri}}


def model(uri):
    return {"model": {"uri": uri}}


def judge_by(uri):
    reward = {"name": "judged", "model": {"uri": uri}}
    return {"train": {**SPEC["train"], "rewards": [reward]}}


def rows(uri):
    digest = {"digest": f"blake3:{'a' * 64}"}
    data = {"jsonl": {"uri": uri, **digest}}
    return {"train": {"algorithm": {"sft": {}}, "maxSteps": 1, "data": data}}


def asked(uri):
    suite = {"data": {"jsonl": {"uri": uri}}}
    return {"evaluations": [{"name": "held-out", "suite": suite}]}


def pods(**settings):
    return {"learner": settings}


def judged(added, lists=LISTS, namespace="mine"):
    allowed = RuntimeSpec.model_validate({"allowed": lists}).allowed
    return check_allowed(RolloutRunSpec.model_validate({**SPEC, **added}), allowed, namespace)


FINE = [
    {},
    pods(annotations={"note": "x", "team.example/any": "x"}),
    pods(labels={"cost-centre": "7", "team.example/any": "x"}),
    pods(priorityClassName="research"),
    pods(tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]),
    pods(tolerations=[{"key": "gpu", "value": "a", "effect": "NoSchedule"}]),
    image("registry.example:5000/team/vllm:1"),
    image(f"registry.example:5000/team/deep/vllm:1{DIGEST}"),
    image("ghcr.example/one:2"),
    agent("ghcr.example/one:2"),
    harbor(f"registry.example:5000/team/tasks:1{DIGEST}"),
    code("ghcr.example/one"),
    code(f"ghcr.example/two:1{DIGEST}"),
    storage("s3://shared/mine/runs"),
    storage("s3://shared/mine/"),
    storage("s3://shared/mine"),
    storage("s3://shared"),
    storage("s3://shared/"),
    storage("s3://exact/runs/"),
    {"storage": {"uri": "s3://exact/runs", "endpoint": "https://s3.example:9000"}},
    {"storage": {"ledger": {"postgres": {"secretRef": {"name": "mine"}}}}},
    wheel("https://wheels.example/team/a-1.0+cpu-py3-none-any.whl"),
    wheel("s3://shared/mine/a.whl"),
    wheel("file:///wheels/a.whl"),
    pages("docs.python.org", "api.example:8443"),
    model("s3://shared/mine/models/tiny"),
    model("gs://shared/mine/tiny"),
    judge_by("s3://shared/mine/judge"),
    rows("s3://shared/mine/rows.jsonl"),
    rows("https://data.example/team/rows.jsonl.zst"),
    asked("s3://shared/mine/asked.jsonl"),
]


@pytest.mark.parametrize("added", FINE, ids=json.dumps)
def test_what_the_runtime_names_is_allowed(added):
    assert judged(added) is None


@pytest.mark.parametrize(
    "host",
    [
        "python.org",
        "xdocs.python.org",
        "docs.python.org.evil.example",
        "docs.python.org:8443",
        "api.example",
    ],
)
@pytest.mark.parametrize("lists", [LISTS, {}], ids=["named", "closed"])
def test_a_host_that_the_runtime_does_not_name_letter_by_letter_gives_no_page(host, lists):
    gate = judged(pages("docs.python.org", host), lists)
    assert gate is not None
    assert gate.reason == "NotAllowed"
    place = 1 if lists else 0
    assert f"spec.train.environment.http.hosts[{place}]" in gate.message
    assert "spec.allowed.hosts" in gate.message


ANNOTATIONS = ["Note", "note/x", "team.example", "xteam.example/a", "rollout.dev/disruptions"]
IMAGES = [
    "ghcr.example/One",
    "ghcr.example/one/more",
    "ghcr.example/onemore",
    "ghcr.example/two:1",
    "ghcr.example/two:2",
    f"ghcr.example/two:1@sha256:{'b' * 64}",
    "registry.example/team/vllm",
    "registry.example:5001/team/vllm",
    "registry.example:5000/team",
    "registry.example:5000/teams/vllm",
    "registry.example:5000/team/",
    "registry.example:5000/team//vllm",
    "registry.example:5000/team/../stranger/vllm",
    "registry.example:5000/team/%2e%2e/stranger",
    "registry.example:5000/Team/vllm",
    "registry.example:5000/team/vllm@sha256:short",
    "registry.example:5000/team/vllm:1\n",
    "https://registry.example:5000/team/vllm",
    "stranger.example/registry.example:5000/team/vllm",
    "registry.example:5000@stranger.example/team/vllm",
    "registry.еxample:5000/team/vllm",
    " ghcr.example/one",
    "one",
]
PLACES = [
    "s3://shared/theirs/runs",
    "s3://shared/mine2",
    "s3://shared/mine/../theirs",
    "s3://shared/mine/..",
    "s3://shared/mine/./x",
    "s3://shared/mine/%2e%2e/theirs",
    "s3://shared/mine//x",
    "s3://shared/mine\\..\\theirs",
    "s3://shared/mine/?prefix=theirs",
    "s3://shared/mine/#x",
    "s3://shared/$(namespace)/x",
    "S3://shared/mine/x",
    "s3://Shared/mine/x",
    "s3://user@shared/mine/x",
    "s3://shared/mıne/x",
    "s3://exact/runs2",
    "s3://exact/runs/deeper",
    "file:///shared/mine",
    "/shared/mine",
    "s3://shared/mine/x\n",
]
WHEELS = [
    "https://wheels.example/a.whl",
    "https://wheels.example/team/../a.whl",
    "https://wheels.example:8443/team/a.whl",
    "https://wheels.example@stranger.example/team/a.whl",
    "https://stranger.example/wheels.example/team/a.whl",
    "http://wheels.example/team/a.whl",
    "s3://exact/runs",
    "file:///wheels/b.whl",
    "file:///etc/passwd",
    "a.whl",
]
FAR = [one for one in PLACES if one[:2].lower() == "s3"]
WEB = [
    "https://data.example/other/rows.jsonl",
    "https://data.example/team/../other/rows.jsonl",
    "https://data.example/team/rows.jsonl?of=another",
    "https://data.example@stranger.example/team/rows.jsonl",
    "https://data.example:8443/team/rows.jsonl",
    "https://169.254.169.254/latest/meta-data",
    "https://kubernetes.default.svc/api",
]
SYSTEM = ["system-cluster-critical", "system-node-critical", "research-high", "researc"]


@pytest.mark.parametrize(
    ("added", "field"),
    [
        *((pods(annotations={key: "x"}), "annotations") for key in ANNOTATIONS),
        *((pods(labels={key: "x"}), "labels") for key in ("Cost-Centre", "team.example", "queue")),
        *((pods(priorityClassName=name), "priorityClassName") for name in SYSTEM),
        *((image(one), "engine.vllm.image") for one in IMAGES),
        *((code(one), "code.image.reference") for one in IMAGES),
        *((agent(one), "environment.agent.image") for one in IMAGES),
        *((harbor(one), "environment.python.parameters[1].value") for one in IMAGES),
        *((storage(one), "storage.uri") for one in PLACES),
        *((wheel(one), "code.wheel.uri") for one in (*WHEELS, *PLACES)),
        *((model(one), "spec.model.uri") for one in FAR),
        *((judge_by(one), "rewards[0].model.uri") for one in FAR),
        *((rows(one), "data.jsonl.uri") for one in (*FAR, *WEB)),
        *((asked(one), "suite.data.jsonl.uri") for one in (*FAR, *WEB)),
        ({"storage": {"uri": "s3://exact/runs", "endpoint": "https://evil"}}, "storage.endpoint"),
        ({"storage": {"endpoint": "http://169.254.169.254"}}, "storage.endpoint"),
    ],
    ids=repr,
)
def test_what_it_does_not_name_is_refused_with_field_reason_and_fix(added, field):
    blocked = judged(added)
    assert blocked is not None
    assert blocked.reason == "NotAllowed"
    assert field in blocked.message
    assert "; " in blocked.message
    assert "(NotAllowed)" in blocked.message


@pytest.mark.parametrize(
    "added", [one for one in FINE[1:] if "ledger" not in one.get("storage", {})], ids=json.dumps
)
def test_a_runtime_that_names_nothing_allows_nothing(added):
    assert judged(added, {}).reason == "NotAllowed"
    assert judged(added, None).reason == "NotAllowed"


def test_a_namespace_that_is_a_part_of_anothers_name_reaches_nothing_of_it():
    assert judged(storage("s3://shared/mine/x"), namespace="min") is not None
    assert judged(storage("s3://shared/mine/x"), namespace="mine-2") is not None


def test_a_text_without_a_character_is_no_entry():
    for name in ("annotations", "labels", "images", "storage", "priorityClasses"):
        with pytest.raises(ValidationError):
            RuntimeSpec.model_validate({"allowed": {name: [""]}})


MINE = {"python": {"module": "mine", "className": "Mine"}}
HUB = {"huggingFace": {"path": "owner/name"}}


def train(data, environment=MINE):
    return {"train": {**SPEC["train"], "data": data, "environment": environment}}


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (HUB, "spec.train.data.huggingFace.path"),
        ({"jsonl": {"uri": "hf://owner/name/a.jsonl"}}, "spec.train.data.jsonl.uri"),
    ],
)
def test_data_of_a_hub_beside_data_code_needs_the_runtimes_word(data, field):
    refused = judged(train(data))
    assert field in refused.message
    assert "spec.allowed.dataCodeNetwork" in refused.message
    assert judged(train(data), {**LISTS, "dataCodeNetwork": True}) is None
    assert judged(train(data, {"builtin": {"name": "single-turn"}})) is None


@pytest.mark.parametrize(
    "data", [{"huggingFace": {"path": "/data/a"}}, {"jsonl": {"uri": "a.jsonl"}}]
)
def test_data_that_lies_in_the_pod_needs_no_word(data):
    assert judged(train(data)) is None


def test_a_tag_is_no_digest():
    lists = {**LISTS, "requireDigests": True}
    refused = judged(image("ghcr.example/one:2"), lists)
    assert refused is not None
    assert "has no digest" in refused.message
    assert judged(image(f"ghcr.example/one:2{DIGEST}"), lists) is None
    assert judged(code(f"ghcr.example/three:2{DIGEST}"), lists) is not None


GPU = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
EXACT = {"key": "gpu", "value": "a", "effect": "NoExecute", "tolerationSeconds": 60}


@pytest.mark.parametrize(
    ("entry", "wanted", "covered"),
    [
        (GPU, {"operator": "Exists"}, False),
        (GPU, {"operator": "Exists", "effect": "NoSchedule"}, False),
        (GPU, {"key": "gpu", "operator": "Exists"}, False),
        (GPU, {**GPU, "effect": "NoExecute"}, False),
        (GPU, {**GPU, "key": "Gpu"}, False),
        (GPU, {**GPU, "key": "node.kubernetes.io/unreachable"}, False),
        (GPU, {"key": "gpu", "value": "", "effect": "NoSchedule"}, True),
        (EXACT, EXACT, True),
        (EXACT, {**EXACT, "tolerationSeconds": 59}, True),
        (EXACT, {**EXACT, "tolerationSeconds": 61}, False),
        (EXACT, {"key": "gpu", "value": "a", "effect": "NoExecute"}, False),
        (EXACT, {**EXACT, "operator": "Exists"}, False),
        (EXACT, {**EXACT, "value": "b"}, False),
        ({"operator": "Exists"}, {"operator": "Exists"}, True),
        ({"operator": "Exists"}, GPU, True),
        ({"operator": "Equal"}, {"key": "gpu", "operator": "Equal"}, False),
        ({"operator": "Equal"}, {"operator": "Exists"}, False),
    ],
)
def test_a_toleration_reaches_no_further_than_the_one_that_covers_it(entry, wanted, covered):
    assert covers(Toleration.model_validate(entry), Toleration.model_validate(wanted)) is covered


@pytest.mark.parametrize(
    ("allowed", "served"),
    [
        (None, False),
        ({"from": "Names", "names": []}, False),
        ({"from": "Names", "names": ["min", "mine-2", "theirs"]}, False),
        ({"from": "Names", "names": ["theirs", "mine"]}, True),
        ({"from": "All"}, True),
        ({"from": "Selector", "selector": {"matchLabels": {"team": "a"}}}, True),
        ({"from": "Selector", "selector": {"matchLabels": {"team": "a", "stage": "x"}}}, False),
        ({"from": "Selector", "selector": {"matchLabels": {"team": "A"}}}, False),
    ],
)
def test_a_runtime_of_the_cluster_serves_the_namespaces_it_names(allowed, served):
    spec = {} if allowed is None else {"allowedNamespaces": allowed}
    blocked = check_namespace(
        ClusterRuntimeSpec.model_validate(spec), "gpus", "mine", {"team": "a", "more": "b"}
    )
    assert (blocked is None) is served
    if blocked is not None:
        assert blocked.reason == "NotAllowed"
        assert "allowedNamespaces" in blocked.message


def test_names_beside_all_are_refused_and_not_passed_over():
    with pytest.raises(ValidationError, match="from: Names"):
        ClusterRuntimeSpec.model_validate({"allowedNamespaces": {"from": "All", "names": ["mine"]}})


@pytest.mark.parametrize(
    "broken",
    [
        {"from": "Selector"},
        {"from": "All", "selector": {"matchLabels": {"team": "a"}}},
        {"from": "Selector", "selector": {"matchLabels": {}}},
        {"from": "Selector", "selector": {}},
        {"from": "Selector", "names": ["mine"], "selector": {"matchLabels": {"team": "a"}}},
        {"from": "Selector", "selector": {"matchExpressions": []}},
    ],
)
def test_a_selector_that_would_match_everything_or_is_not_asked_is_refused(broken):
    with pytest.raises(ValidationError):
        ClusterRuntimeSpec.model_validate({"allowedNamespaces": broken})


class Cluster:
    """A store with one run of namespace `mine`, and whoever looks at it."""

    def __init__(self):
        nobody = cast("KubeClient", None)
        self.store = RunStore()
        self.version = 0
        self.observer = Observer(
            client=nobody,
            store=self.store,
            platform=lambda: PLATFORM,
            asker=Asker(client=nobody, served=lambda: False),
            keyring=Keyring,
        )

    def put(self, kind, spec, *, uid, namespace="", name="default", generation=1):
        self.version += 1
        meta = {"name": name, "namespace": namespace, "uid": uid, "generation": generation}
        meta["resourceVersion"] = str(self.version)
        self.store.put_object(kind, {"metadata": meta, "spec": spec})

    def gate(self):
        stored = self.store.find(Key(namespace="mine", name="r", kind="RolloutRun"))
        return self.observer.look(stored).gate


@pytest.fixture
def cluster():
    made = Cluster()
    spec = {**SPEC, **pods(annotations={"note": "x"})}
    made.put("RolloutRun", spec, uid="run", namespace="mine", name="r")
    return made


ALL = {"allowedNamespaces": {"from": "All"}}
OPEN = {**ALL, "allowed": {"annotations": ["note"]}}


def test_the_operator_asks_the_runtime_whether_a_webhook_did_or_not(cluster):
    cluster.put("ClusterRolloutRuntime", ALL, uid="one")
    assert cluster.gate().reason == "NotAllowed"
    cluster.put("ClusterRolloutRuntime", OPEN, uid="one", generation=2)
    assert cluster.gate() is None


def test_a_runtime_of_another_team_is_not_mine_by_name(cluster):
    cluster.put("ClusterRolloutRuntime", {"allowed": OPEN["allowed"]}, uid="one")
    assert "does not serve namespace 'mine'" in cluster.gate().message


def test_another_runtime_of_the_same_name_and_generation_is_asked_anew(cluster):
    cluster.put("ClusterRolloutRuntime", OPEN, uid="one")
    assert cluster.gate() is None
    cluster.put("ClusterRolloutRuntime", ALL, uid="two")
    assert cluster.gate().reason == "NotAllowed"
    cluster.put("ClusterRolloutRuntime", OPEN, uid="three")
    cluster.put("RolloutRuntime", {}, uid="four", namespace="mine")
    assert cluster.gate().reason == "NotAllowed"


def test_an_edit_that_adds_what_is_not_allowed_begins_no_attempt_and_harms_no_live_one():
    world = World(spec=SPEC)
    world.settle()
    before = world.replicas()
    world.gate = judged(pods(priorityClassName="system-node-critical"))
    world.settle()
    assert world.replicas() == before
    world.change(suspend=True)
    for _ in range(40):
        world.tick(5)
    world.change(suspend=False)
    world.settle()
    assert not any(world.replicas().values())
    assert world.condition("Stalled") == ("True", "NotAllowed")
