"""Who asks a candidate's servers before clients do, and who watches it beside what serves: Jobs, and what they rely on."""

from __future__ import annotations

import json

from rollout_api import names
from rollout_api.checks.environment.evaluations import evaluation_name
from rollout_api.serving import (
    MEASURE_KEY_VARIABLE,
    MEASURE_VARIABLE,
    WATCH_VARIABLE,
    MeasureOrder,
    WatchOrder,
)
from rollout_api.v1alpha1.evaluation import SuiteRun
from rollout_operator.endpoint.inputs import CANARY_KEY, PORT, Manifest, ServerInputs
from rollout_operator.endpoint.render.pods import literal
from rollout_operator.jobs.render import build_one_pod_job, build_scratch
from rollout_operator.kube.managed_fields import digest_of
from rollout_operator.run.render import contract
from rollout_operator.run.render.layers import (
    PodLayers,
    merge_env,
    merge_placement,
    secret_variable,
)
from rollout_operator.run.render.pods import (
    CONTAINED,
    NAMED,
    SIDE_RESOURCES,
    pull_policy_of,
    security_of,
)
from rollout_operator.run.render.volumes import further

ASK_COMMAND = ["python", "-m", "rollout.entrypoints.errands.measure"]
WATCH_COMMAND = ["python", "-m", "rollout.entrypoints.errands.watch"]
MEASURE, WATCH = "measure", "watch"
KEPT_SECONDS = 86_400
"""How long a Job that has ended stays, for people."""
LATE_SECONDS = 900
"""Beside the time of a canary: for its pod to come up."""


def name_evaluations(asked: tuple[SuiteRun, ...]) -> tuple[SuiteRun, ...]:
    """Each with the name that it has in status and messages."""
    return tuple(
        one.model_copy(update={"name": evaluation_name(one, place)})
        for place, one in enumerate(asked)
    )


def name_job(inputs: ServerInputs, revision: str) -> str:
    """Of what is asked of which revision: another bar alone asks nothing again."""
    asked = [
        one.model_dump(mode="json", exclude={"gate"}) | {"metric": one.gate and one.gate.metric}
        for one in name_evaluations(inputs.spec.promotion.evaluations)
    ]
    return names.measure_name(inputs.uid, digest_of([revision, asked]))


def name_watch(inputs: ServerInputs, revision: str, serving: str) -> str:
    """Of what is watched beside what, and how: another canary is another Job."""
    wanted = inputs.spec.promotion
    how = [wanted.canary_percent, wanted.bake_seconds, wanted.guard.model_dump(mode="json")]
    return names.measure_name(inputs.uid, digest_of([revision, serving, how]))


def build_measuring(inputs: ServerInputs, job: str) -> Manifest:
    """The Job that asks what the promotion's evaluations say."""
    return _build_job(inputs, job, _measure(inputs), inputs.spec.promotion.evaluation_seconds)


def build_watching(inputs: ServerInputs, job: str) -> Manifest:
    """The Job that watches a canary."""
    return _build_job(
        inputs, job, _watch(inputs), inputs.spec.promotion.bake_seconds + LATE_SECONDS
    )


def build_canary(inputs: ServerInputs, revision: str, percent: int) -> Manifest:
    """What servers are told of a candidate: the kubelet brings it within about a minute."""
    url = f"http://{names.candidate_name(inputs.name)}.{inputs.namespace}.svc:{PORT}"
    order = json.dumps({"url": url, "percent": percent, "salt": revision}, sort_keys=True)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": inputs.meta(names.canary_name(inputs.name)),
        "data": {CANARY_KEY: order},
    }


def _build_job(inputs: ServerInputs, job: str, container: Manifest, seconds: int) -> Manifest:
    """One pod at a time, with no more than a server has, until it has said what it found or its time is over."""
    labels = {**inputs.common_labels, names.LABEL_COMPONENT: container["name"]}
    template = {
        # Without the labels of servers: it is none of them for the budget, the scale, or the address.
        "metadata": {"labels": {**inputs.template.labels, **labels}},
        "spec": _build_pod(inputs, container),
    }
    meta = {**inputs.meta(job), "labels": labels}
    return build_one_pod_job(meta, template, seconds, ttlSecondsAfterFinished=KEPT_SECONDS)


def _measure(inputs: ServerInputs) -> Manifest:
    """A key comes from its Secret, which the operator never reads."""
    order = MeasureOrder(
        url=f"http://{names.candidate_name(inputs.name)}.{inputs.namespace}.svc:{PORT}/v1",
        model=inputs.spec.model_name or inputs.name,
        evaluations=name_evaluations(inputs.spec.promotion.evaluations),
    )
    text = order.model_dump_json(by_alias=True, exclude_none=True)
    keys = [one.secret_key_ref for one in inputs.spec.api_keys[:1]]
    ours = [
        *(secret_variable(MEASURE_KEY_VARIABLE, one.name, one.key) for one in keys),
        {"name": MEASURE_VARIABLE, "value": literal(text)},
    ]
    return {"name": MEASURE, "command": ASK_COMMAND, "env": ours}


def _watch(inputs: ServerInputs) -> Manifest:
    order = WatchOrder(
        candidate=f"{names.candidate_name(inputs.name)}.{inputs.namespace}.svc",
        serving=f"{names.baseline_name(inputs.name)}.{inputs.namespace}.svc",
        port=PORT,
        seconds=max(1, inputs.spec.promotion.bake_seconds),
        guard=inputs.spec.promotion.guard,
    )
    text = order.model_dump_json(by_alias=True, exclude_none=True)
    ours = [{"name": WATCH_VARIABLE, "value": literal(text)}]
    return {"name": WATCH, "command": WATCH_COMMAND, "env": ours}


def _build_pod(inputs: ServerInputs, container: Manifest) -> Manifest:
    mounts = [*build_scratch(), *map(further, inputs.template.volumes)]
    images = inputs.runtime.images
    pulled = images.pull_secrets if images is not None else ()
    return {
        "restartPolicy": "Never",
        "serviceAccountName": inputs.account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security_of(inputs.template),
        "containers": [
            {
                **container,
                "image": inputs.worker_image,
                **pull_policy_of(inputs.runtime),
                "env": [
                    *merge_env(_layers(inputs)),
                    {"name": "HOME", "value": contract.HOME_FOLDER},
                    NAMED,
                    *container["env"],
                ],
                "resources": SIDE_RESOURCES,
                "securityContext": CONTAINED,
                "volumeMounts": [mount.mount() for mount in mounts],
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
        "volumes": [mount.volume() for mount in mounts],
        **({"imagePullSecrets": [{"name": one.name} for one in pulled]} if pulled else {}),
        **merge_placement(_layers(inputs)),
    }


def _layers(inputs: ServerInputs) -> PodLayers:
    """As a server's, without its devices: it waits for answers."""
    return PodLayers(template=inputs.template, user=inputs.spec)
