"""RolloutEndpoints: what is not built is refused by name, as is what would do more than serve a model."""

import pytest

from rollout_api.checks import check_document
from rollout_api.problems import Severity

HEAD = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutEndpoint"}
KEYS = [{"name": "ann", "secretKeyRef": {"name": "keys", "key": "ann"}}]
SPEC = {"model": {"uri": "rollout://tiny-adder"}, "engine": {"embedded": {}}, "apiKeys": KEYS}
SNAPSHOT = {"snapshotRef": {"name": "a"}}
LIVE = {"fromRun": {"name": "a", "snapshot": "Live"}}
HUB = {"uri": "hf://Qwen/Qwen2.5-0.5B-Instruct"}


def check(**spec):
    document = {**HEAD, "metadata": {"name": "chat"}, "spec": {**SPEC, **spec}}
    return [(one.field, one.reason) for one in check_document(document)]


def test_small_and_large_models_pass():
    assert check() == []
    assert check(model={**HUB, "revision": "a1b2"}, engine={"vllm": {}}) == []
    assert check(model={"uri": "file:///models/mine"}, engine={"vllm": {"tensorParallel": 2}}) == []
    assert check(model={"fromRun": {"name": "a", "snapshot": "Best"}}) == []
    assert check(model=LIVE, replicas=2) == []
    assert check(model={**SNAPSHOT, "baseURI": "rollout://tiny-adder?steps=0"}) == []
    assert check(model={**SNAPSHOT, "baseURI": HUB["uri"], "revision": "a1b2"}) == []


GSM8K = {"suite": {"builtin": {"name": "gsm8k"}}}
GATE = {"metric": "accuracy", "lowerBound": "0.5", "action": "StopPromotion"}
STOPS_RUN = {**GATE, "action": "StopRun"}


def test_a_promotion_may_have_bars():
    asked = [{**GSM8K, "gate": GATE}, {**GSM8K, "name": "told", "gate": {**GATE, "action": "Warn"}}]
    assert check(promotion={"evaluations": asked}) == []


def test_a_promotion_may_be_a_canary_with_a_guard():
    guard = {"minRequests": 50, "maxFailedShare": "0.02", "maxFirstByteRatio": "2"}
    assert check(promotion={"canaryPercent": 5, "bakeSeconds": 60, "guard": guard}) == []
    assert check(promotion={"canaryPercent": 0, "bakeSeconds": 600, "guard": {}}) == []


@pytest.mark.parametrize(
    ("evaluation", "field", "reason"),
    [
        ({"suite": {"builtin": {"name": "gsm9k"}}}, "suite.builtin.name", "UnknownPlugin"),
        ({**GSM8K, "gate": {**GATE, "metric": "speed"}}, "gate.metric", "UnreachableGate"),
        ({**GSM8K, "gate": {**GATE, "lowerBound": "2"}}, "gate.lowerBound", "UnreachableGate"),
        ({**GSM8K, "samplesPerPrompt": 2}, "temperature", "GreedyPassAtK"),
        ({**GSM8K, "name": "n" * 64}, "name", "InvalidValue"),
        (GSM8K, "name", "DuplicateName"),
    ],
)
def test_a_bar_that_means_nothing_is_refused(evaluation, field, reason):
    found = check(promotion={"evaluations": [GSM8K, evaluation]})
    wanted = (f"spec.promotion.evaluations[1].{field}", reason)
    distinct = [one for one in found if one[1] != "DuplicateName" or reason == "DuplicateName"]
    assert distinct == [wanted]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"model": {"uri": "s3://bucket/models"}}, "spec.model.uri"),
        ({"model": {"uri": "pvc://claim/models"}}, "spec.model.uri"),
        ({"model": {"uri": "/models"}}, "spec.model.uri"),
        ({"queueName": "a"}, "spec.queueName"),
        ({"model": LIVE, "engine": {"vllm": {}}}, "spec.engine"),
        ({"model": LIVE, "engine": None}, "spec.engine"),
        ({"model": LIVE, "promotion": {"canaryPercent": 5}}, "spec.promotion.canaryPercent"),
        (
            {"model": LIVE, "promotion": {"evaluations": [GSM8K]}},
            "spec.promotion.evaluations",
        ),
        ({"sampling": {"temperature": "0.5"}}, "spec.sampling"),
        (
            {"promotion": {"evaluations": [{"suite": {"builtin": {"name": "humaneval"}}}]}},
            "spec.promotion.evaluations[0].suite.builtin.name",
        ),
        (
            {"promotion": {"evaluations": [{"suite": {"builtin": {"name": "mmlu"}}}]}},
            "spec.promotion.evaluations[0].suite.builtin.name",
        ),
        (
            {"promotion": {"evaluations": [{"suite": {"data": {"plugin": {"path": "rows"}}}}]}},
            "spec.promotion.evaluations[0].suite.data",
        ),
        (
            {
                "promotion": {
                    "evaluations": [{"suite": {"python": {"module": "a", "className": "B"}}}]
                }
            },
            "spec.promotion.evaluations[0].suite.python",
        ),
        (
            {"promotion": {"evaluations": [GSM8K, {**GSM8K, "name": "b", "gate": STOPS_RUN}]}},
            "spec.promotion.evaluations[1].gate.action",
        ),
    ],
)
def test_what_is_not_built_is_refused_by_name(spec, field):
    assert check(**spec) == [(field, "NotSupported")]


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ({"model": HUB}, "spec.model.revision", "MissingField"),
        ({"model": {"uri": "hf://Qwen", "revision": "a"}}, "spec.model.uri", "UnknownModel"),
        (
            {"model": {"fromRun": {"name": "a", "snapshot": "live"}}},
            "spec.model.fromRun.snapshot",
            "InvalidValue",
        ),
        (
            {"model": {"fromRun": {"name": "a", "snapshot": "step-000004"}}},
            "spec.model.fromRun.snapshot",
            "InvalidValue",
        ),
        ({"model": SNAPSHOT}, "spec.model.baseURI", "MissingField"),
        ({"model": {**SNAPSHOT, "baseURI": HUB["uri"]}}, "spec.model.revision", "MissingField"),
        ({"model": {**SNAPSHOT, "baseURI": "s3://b/m"}}, "spec.model.baseURI", "NotSupported"),
        ({"model": {**SNAPSHOT, "baseURI": "rollout://no"}}, "spec.model.baseURI", "UnknownModel"),
        (
            {"model": {"uri": "rollout://tiny-adder", "baseURI": "rollout://tiny-adder"}},
            "spec.model.baseURI",
            "NotUsedByModel",
        ),
        (
            {"model": {"fromRun": {"name": "a"}, "revision": "main"}},
            "spec.model.revision",
            "NotUsedByModel",
        ),
        ({"model": {"uri": "rollout://tiny"}}, "spec.model.uri", "UnknownModel"),
        (
            {"model": {"uri": "rollout://tiny-adder", "revision": "a"}},
            "spec.model.revision",
            "NotUsedByModel",
        ),
        ({"modelName": "../../etc/passwd"}, "spec.modelName", "InvalidValue"),
        ({"modelName": "a\nb"}, "spec.modelName", "InvalidValue"),
        ({"accelerator": {"className": "a"}}, "spec.accelerator", "NotUsedByEngine"),
        (
            {
                "engine": {"vllm": {"tensorParallel": 2}},
                "accelerator": {"className": "a", "count": 1},
            },
            "spec.engine.vllm.tensorParallel",
            "TooFewDevices",
        ),
        ({"labels": {"rollout.dev/endpoint": "other"}}, "spec.labels", "ReservedName"),
        (
            {"resources": {"limits": {"nvidia.com/gpu": "8"}}},
            "spec.resources.limits",
            "NotAllowed",
        ),
        ({"env": [{"name": "LD_PRELOAD", "value": "/x.so"}]}, "spec.env[0].name", "ReservedName"),
        (
            {"env": [{"name": "ROLLOUT_SERVE_ORDER", "value": "{}"}]},
            "spec.env[0].name",
            "ReservedName",
        ),
        (
            {"env": [{"name": "HF_TOKEN", "value": "hf_1"}]},
            "spec.env[0].value",
            "SecretInPlainText",
        ),
        ({"annotations": {f"a{i}": "x" * 4000 for i in range(20)}}, "spec.annotations", "TooLarge"),
    ],
)
def test_what_would_not_work_or_reach_too_far_is_refused_where_it_stands(spec, field, reason):
    assert check(**spec) == [(field, reason)]


@pytest.mark.parametrize(
    "argument",
    [
        {"name": "api-key", "value": "mine"},
        {"name": "host", "value": "0.0.0.0"},
        {"name": "uds", "value": "x"},
        {"name": "trust-remote-code", "value": ""},
        {"name": "middleware", "value": "mine.Code"},
        {"name": "tool-parser-plugin", "value": "mine"},
        {"name": "config", "value": "x"},
        {"name": "-host", "value": "x"},
        {"name": "block-size --host", "value": "16"},
        {"name": "block-size", "value": "16 --host=0.0.0.0"},
        {"name": "block-size", "value": "/etc/passwd"},
        {"name": "block-size", "value": "--host"},
    ],
)
def test_a_flag_that_does_more_than_tune_the_server_is_refused(argument):
    [(field, _)] = check(engine={"vllm": {"extraArguments": [argument]}})
    assert field.startswith("spec.engine.vllm.extraArguments[0]")


def test_a_flag_that_tunes_passes():
    argument = {"name": "block-size", "value": "16"}
    assert check(engine={"vllm": {"extraArguments": [argument]}}) == []


@pytest.mark.parametrize("namespace", ["secretKeyRef", "entry"])
def test_a_key_of_another_namespace_cannot_be_named(namespace):
    reference = {"name": "keys", "key": "ann"}
    entry = {"name": "ann", "secretKeyRef": reference}
    (reference if namespace == "secretKeyRef" else entry)["namespace"] = "victim"
    [(field, reason)] = check(apiKeys=[entry])
    assert (field.endswith("namespace"), reason) == (True, "UnknownField")


def test_an_endpoint_without_keys_is_taken_with_a_warning():
    document = {**HEAD, "metadata": {"name": "chat"}, "spec": {**SPEC, "apiKeys": []}}
    [problem] = check_document(document)
    assert (problem.field, problem.severity) == ("spec.apiKeys", Severity.warning)


HPA = {"maxReplicas": 4, "hpa": {}}
ROUTE = {"gateways": [{"name": "public", "namespace": "edge"}], "hostnames": ["*.example.com"]}


def keda(address):
    return {"maxReplicas": 4, "keda": {"serverAddress": address}}


def test_an_autoscaler_and_a_route_pass():
    assert check(scaling=HPA, route=ROUTE) == []
    assert check(scaling=keda("https://prometheus.monitoring.svc:9090/prefix")) == []
    assert check(scaling={**keda("http://p:9090"), "minReplicas": 0}) == []


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ({"scaling": HPA, "replicas": 3}, "spec.replicas", "TwoWriters"),
        ({"scaling": {**HPA, "minReplicas": 5}}, "spec.scaling.minReplicas", "EmptyRange"),
        ({"scaling": {**HPA, "minReplicas": 0}}, "spec.scaling.minReplicas", "NotSupported"),
        (
            {
                "scaling": {**keda("http://p"), "minReplicas": 0},
                "tls": {"secretRef": {"name": "a"}},
            },
            "spec.scaling.minReplicas",
            "NotSupported",
        ),
        ({"scaling": {**HPA, "minReplicas": -1}}, "spec.scaling.minReplicas", "OutOfRange"),
        ({"scaling": {"hpa": {}}}, "spec.scaling.maxReplicas", "MissingField"),
        ({"scaling": {"maxReplicas": 4}}, "spec.scaling", "ExactlyOneOf"),
        ({"scaling": {**HPA, **keda("http://p")}}, "spec.scaling", "ExactlyOneOf"),
        (
            {"scaling": {**HPA, "targetSaturation": 0}},
            "spec.scaling.targetSaturation",
            "OutOfRange",
        ),
        *(
            ({"scaling": keda(one)}, "spec.scaling.keda.serverAddress", "InvalidValue")
            for one in (
                *("prometheus:9090", "file:///etc/passwd", "http://", "http://a:99999"),
                *("http://ann:secret@p:9090", "http://p:9090?query=up", "http://p:9090#a"),
            )
        ),
        ({"route": {"gateways": []}}, "spec.route.gateways", "TooFew"),
        ({"route": {**ROUTE, "hostnames": ["a b"]}}, "spec.route.hostnames[0]", "InvalidValue"),
        ({"route": ROUTE, "tls": {"secretRef": {"name": "a"}}}, "spec.route", "Contradiction"),
    ],
)
def test_what_cannot_be_scaled_or_reached_is_refused_by_name(spec, field, reason):
    assert check(**spec) == [(field, reason)]


def test_a_route_without_keys_is_refused():
    assert ("spec.route", "NoKeys") in check(route=ROUTE, apiKeys=[])
