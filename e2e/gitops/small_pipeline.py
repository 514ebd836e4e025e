"""What stands in Git: the operator as `manifests/default` has it, and the pipeline of `manifests/gitops` made small by overlays.

Flux's own objects are those of `manifests/gitops`; changed are where Git is, the paths of the overlays, and that stages wait for the operator.
"""

from pathlib import Path
from typing import Any

import installation
import yaml
from bucket import Bucket

from cluster.kubectl import Kubectl
from cluster.paths import REPOSITORY
from runs import lay_over

Manifest = dict[str, Any]

GITOPS = REPOSITORY / "manifests" / "gitops"
PIPELINE = Path("manifests/gitops/pipeline")
OURS = Path("clusters/test")
OPERATOR, RUNS, SERVING = "rollout", "gsm8k-runs", "gsm8k-serving"
SFT, GRPO, ENDPOINT, TEAM, RUNTIME = "gsm8k-sft", "gsm8k-grpo", "gsm8k", "research", "small"
ROWS = REPOSITORY / "manifests" / "samples" / "data" / "addition" / "worked-sums.jsonl"
"""Of this machine's environment, which the runtime mounts into every pod."""
STEPS_FIRST, STEPS = 8, 12
"""Of the reinforcement: in the first commit, and in the one that comes while the runs work."""
BAR = "0.05"
"""The pupil's sums alone give a third; a model that has learned nothing has none right."""
SUMS = {"builtin": {"name": "arithmetic"}}
"""In place of the problems of gsm8k."""
UNTRAINED = {"model": {"uri": "rollout://tiny-adder?steps=0", "fromRun": None}}


def write_pipeline() -> dict[str, str]:
    """The sample, as it is, by its paths."""
    found = sorted((REPOSITORY / PIPELINE).rglob("*.yaml"))
    return {str(path.relative_to(REPOSITORY)): path.read_text() for path in found}


def write_operator(kubectl: Kubectl, bucket: Bucket, cache: Path) -> dict[str, str]:
    """Definitions, operator, webhook and the runtime of the runs, which keep their objects in the bucket."""
    rendered = list(yaml.safe_load_all(kubectl("kustomize", str(REPOSITORY / "manifests/default"))))
    definitions = [one for one in rendered if one["kind"] == "CustomResourceDefinition"]
    rest = installation.build_operator(rendered, cache, webhook=True)
    objects = [*definitions, *rest, bucket.runtime(RUNTIME, cache)]
    return _folder(OPERATOR, ["objects.yaml"]) | {
        str(OURS / OPERATOR / "objects.yaml"): yaml.safe_dump_all(objects)
    }


def write_runs(steps: int) -> dict[str, str]:
    """The overlay of the runs."""
    return _overlay("training", _patch(SFT, _sft()), _patch(GRPO, _grpo(steps)))


def write_serving(**changes: Any) -> dict[str, str]:
    """The overlay of the endpoint; `changes` are laid over its spec."""
    spec = lay_over_keeping_nulls(_serving(), changes)
    return _overlay("serving", _patch(ENDPOINT, spec, kind="RolloutEndpoint"))


def write_no_runs() -> dict[str, str]:
    """The overlay without them: something else stands there."""
    note = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note"}}
    files = _folder("training", ["note.yaml"], namespace=TEAM)
    return files | {str(OURS / "training" / "note.yaml"): yaml.safe_dump(note)}


def build_flux(url: str) -> list[Manifest]:
    """The source and the three stages."""
    source = next(one for one in _read("flux.yaml") if one["kind"] == "GitRepository")
    runs, serving = _read("flux-pipeline.yaml")
    meta = {"name": OPERATOR, "namespace": source["metadata"]["namespace"]}
    common = {key: runs[key] for key in ("apiVersion", "kind")}
    spec = {"interval": "10m", "sourceRef": runs["spec"]["sourceRef"], "prune": True, "wait": True}
    operator = {**common, "metadata": meta, "spec": spec}
    waits = {"dependsOn": [{"name": OPERATOR}]}
    return [
        lay_over(source, {"spec": {"url": url}}),
        lay_over(operator, _at(OPERATOR)),
        lay_over(lay_over(runs, _at("training")), {"spec": waits}),
        lay_over(serving, _at("serving")),
    ]


def lay_over_keeping_nulls(base: Any, change: Any) -> Any:
    """As `lay_over`, of patches: their nulls take fields out where they are applied."""
    if not (isinstance(base, dict) and isinstance(change, dict)):
        return change
    names = {**base, **change}
    return {
        name: lay_over_keeping_nulls(base.get(name), change[name]) if name in change else base[name]
        for name in names
    }


def _at(folder: str) -> Manifest:
    return {"spec": {"path": f"./{OURS / folder}"}}


def _read(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all((GITOPS / name).read_text()))


def _overlay(stage: str, *patches: Manifest) -> dict[str, str]:
    base = Path("../../..") / PIPELINE / stage
    return _folder(stage, [str(base)], patches=[{"patch": yaml.safe_dump(one)} for one in patches])


def _folder(name: str, resources: list[str], **more: Any) -> dict[str, str]:
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    text = yaml.safe_dump({**head, "resources": resources, **more})
    return {str(OURS / name / "kustomization.yaml"): text}


def _patch(name: str, spec: Manifest, kind: str = "RolloutRun") -> Manifest:
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": kind}
    return {**head, "metadata": {"name": name}, "spec": {"runtimeRef": {"name": RUNTIME}, **spec}}


def _sft() -> Manifest:
    """As the main job begins: without actors, on a careless pupil's sums."""
    train = {
        "algorithm": {"sft": {"batchSize": 128, "maxLength": 32, "packing": None}},
        "data": {"huggingFace": None, "jsonl": {"uri": f"file://{ROWS}"}},
        "optimizer": {"adamw": {"learningRate": "0.003", "beta2": "0.98"}},
        "microBatchTokens": None,
        "maxSteps": 300,
    }
    model = {"uri": "rollout://tiny-adder?steps=0", "revision": None}
    return {"model": model, "storage": None, "train": train, "learner": None}


def _grpo(steps: int) -> Manifest:
    train = {
        "algorithm": {"grpo": {"promptsPerStep": 8, "groupSize": 4}},
        "data": None,
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "sampling": {"maxNewTokens": 8},
        "microBatchTokens": None,
        "maxSteps": steps,
    }
    return {
        "storage": None,
        "train": train,
        "actors": {
            "replicas": 1,
            "engine": {"vllm": None, "embedded": {}},
            "accelerator": None,
            "preemptible": None,
        },
        "learner": None,
        "evaluations": [{"suite": SUMS, "everySteps": 4, "maxPrompts": 64, "selects": True}],
        "snapshots": {"everySteps": 4},
    }


def _serving() -> Manifest:
    gate = {"metric": "accuracy", "lowerBound": BAR, "action": "StopPromotion"}
    asked = {"suite": SUMS, "maxPrompts": 64, "maxNewTokens": 8, "gate": gate}
    return {
        "engine": {"vllm": None, "embedded": {}},
        "accelerator": None,
        "replicas": 1,
        "resources": {"requests": {"cpu": "200m", "memory": "1Gi"}},
        "promotion": {"evaluations": [asked]},
    }
