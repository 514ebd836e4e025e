"""Who asks a candidate's servers before clients do: a Job, and the address that it asks."""

from __future__ import annotations

from rollout_api import names
from rollout_api.checks.environment.evaluations import evaluation_name
from rollout_api.serving import MEASURE_KEY_VARIABLE, MEASURE_VARIABLE, MeasureOrder
from rollout_api.v1alpha1.evaluation import SuiteRun
from rollout_operator.endpoint.inputs import Manifest, ServerInputs
from rollout_operator.endpoint.render.pods import literal
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
from rollout_operator.run.render.volumes import Mount, further

COMMAND = ["python", "-m", "rollout.entrypoints.errands.measure"]
MEASURE = "measure"
TRIES_MAX = 100
"""The deadline ends it long before: pauses between pods grow to six minutes."""
KEPT_SECONDS = 86_400
"""How long a Job that has ended stays, for people."""


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


def build_job(inputs: ServerInputs, job: str) -> Manifest:
    """One pod at a time, with no more than a server has, until it has asked everything or its time is over."""
    labels = {**inputs.common_labels, names.LABEL_COMPONENT: MEASURE}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**inputs.meta(job), "labels": labels},
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": TRIES_MAX,
            "activeDeadlineSeconds": inputs.spec.promotion.evaluation_seconds,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "podReplacementPolicy": "Failed",
            "template": {
                # Without the labels of servers: it is none of them for the budget, the scale, or the address.
                "metadata": {"labels": {**inputs.template.labels, **labels}},
                "spec": _build_pod(inputs),
            },
        },
    }


def _build_pod(inputs: ServerInputs) -> Manifest:
    mounts = [
        Mount(name="tmp", path="/tmp", source={"emptyDir": {}}),  # noqa: S108 - a volume of the pod
        Mount(name="home", path=contract.HOME_FOLDER, source={"emptyDir": {}}),
        *map(further, inputs.template.volumes),
    ]
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
                "name": MEASURE,
                "image": inputs.worker_image,
                **pull_policy_of(inputs.runtime),
                "command": COMMAND,
                "env": _build_env(inputs),
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


def _build_env(inputs: ServerInputs) -> list[Manifest]:
    """The user's variables, then ours; a key from its Secret, which the operator never reads."""
    order = MeasureOrder(
        url=f"http://{names.candidate_name(inputs.name)}.{inputs.namespace}.svc/v1",
        model=inputs.spec.model_name or inputs.name,
        evaluations=name_evaluations(inputs.spec.promotion.evaluations),
    )
    text = order.model_dump_json(by_alias=True, exclude_none=True)
    keys = [one.secret_key_ref for one in inputs.spec.api_keys[:1]]
    return [
        *merge_env(_layers(inputs)),
        {"name": "HOME", "value": contract.HOME_FOLDER},
        NAMED,
        *(secret_variable(MEASURE_KEY_VARIABLE, one.name, one.key) for one in keys),
        {"name": MEASURE_VARIABLE, "value": literal(text)},
    ]
