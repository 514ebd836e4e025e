"""The order: the one file every worker pod reads, and what can be known before anybody has looked.

The coordinator's pod finds out the rest (digests, stop tokens, longest prompt) and tells the others.
"""

from __future__ import annotations

from rollout_api import names
from rollout_api.names import Role
from rollout_api.places import in_namespace, run_place
from rollout_api.worker import (
    Authentication,
    CallerRole,
    Layout,
    ProgressWriting,
    RunIdentity,
    WorkerOrder,
)
from rollout_operator.run.render import contract
from rollout_operator.run.render.inputs import Inputs
from rollout_operator.run.render.pod_settings import plan_grace_seconds, user_settings
from rollout_operator.run.render.sandboxes import build_sandbox_order
from rollout_operator.run.render.shapes import build_shapes
from rollout_operator.run.render.volumes import CLAIM, claim_name


def build_order(inputs: Inputs) -> WorkerOrder:
    """What the operator knows of a run attempt."""
    code = inputs.spec.code
    mounted = code is not None and code.wheel is None
    spec = in_namespace(inputs.spec, inputs.namespace)
    if mounted:
        assert code is not None
        spec = spec.model_copy(
            update={"code": type(code).model_validate({"path": contract.CODE_FOLDER})}
        )
    return WorkerOrder(
        run=RunIdentity(name=inputs.name, namespace=inputs.namespace, uid=inputs.uid),
        attempt=inputs.attempt,
        generation=inputs.generation,
        spec=spec,
        layout=build_layout(inputs),
        authentication=build_authentication(inputs),
        progress=ProgressWriting(
            api_url=contract.API_SERVER,
            token_file=f"{contract.API_FOLDER}/token",
            ca_file=f"{contract.API_FOLDER}/ca.crt",
            every_seconds=inputs.progress_seconds,
        ),
        shapes=build_shapes(inputs),
        sandboxes=build_sandbox_order(inputs),
        threads=plan_threads(inputs),
        restore=inputs.restore,
        grace_seconds=plan_grace_seconds(inputs, "actor"),
        learner_grace_seconds=plan_grace_seconds(inputs, "learner"),
    )


def coordinator_host(name: str, namespace: str) -> str:
    """The coordinator's stable name inside the cluster."""
    workload = names.workload_name(name, "coordinator")
    return f"{workload}-0.{workload}.{namespace}.svc"


def coordinator_url(name: str, namespace: str) -> str:
    """Where workers, and the operator, reach it."""
    return f"https://{coordinator_host(name, namespace)}:{contract.PORT}"


def build_layout(inputs: Inputs) -> Layout:
    """Where things are in every pod of the run."""
    storage = inputs.spec.storage
    return Layout(
        run_dir=contract.RUN_FOLDER,
        coordinator_url=coordinator_url(inputs.name, inputs.namespace),
        listen_host="0.0.0.0",  # noqa: S104 - the other pods come to its address
        ca_file=f"{contract.CA_FOLDER}/{contract.AUTHORITY}",
        certificate_file=f"{contract.TLS_FOLDER}/{contract.CERTIFICATE}",
        key_file=f"{contract.TLS_FOLDER}/{contract.PRIVATE_KEY}",
        token_file=f"{contract.TOKEN_FOLDER}/token",
        objects_dir=f"{contract.RUN_FOLDER}/objects",
        objects_served=storage is None or storage.uri is None,
        ledger_path=f"{contract.RUN_FOLDER}/ledger.db",
        objects_uri=_objects_uri(inputs),
        rows_socket=contract.ROWS_SOCKET if inputs.spec.brings_data_code else None,
        wheel_dir=contract.WHEEL_FOLDER if inputs.spec.brings_data_code else None,
        sources_dir=contract.SOURCES_FOLDER if inputs.sources else None,
        service_port=None if inputs.spec.serve is None else contract.SERVICE_PORT,
        api_keys_dir=None if inputs.spec.serve is None else contract.API_KEYS_FOLDER,
    )


def _objects_uri(inputs: Inputs) -> str | None:
    """Where other runs find this run's objects: its bucket, or the coordinator's volume."""
    storage = inputs.spec.storage
    if storage is not None and storage.uri is not None:
        return run_place(storage.uri, inputs.namespace, inputs.uid)
    if not inputs.uses_sqlite:
        return None
    return f"{CLAIM}{claim_name(inputs.name, inputs.uid)}/objects"


def build_authentication(inputs: Inputs) -> Authentication:
    """Which account is which role; nobody else is let in."""
    # Without a learner a child in the coordinator's pod publishes the one version, under its account.
    publisher: Role = "coordinator" if inputs.spec.train is None else "learner"
    roles: tuple[tuple[Role, CallerRole], ...] = ((publisher, "learner"), ("actor", "actor"))
    if inputs.spec.serve is not None:
        roles = ()  # a service has no workers
    accounts: dict[str, CallerRole] = {
        f"system:serviceaccount:{inputs.namespace}:{inputs.account(role)}": caller
        for role, caller in roles
    }
    platform = inputs.platform
    operator = f"{platform.operator_namespace}:{platform.operator_account}"
    accounts[f"system:serviceaccount:{operator}"] = "operator"
    return Authentication(
        issuer=platform.issuer,
        jwks_file=f"{contract.KEYS_FOLDER}/{contract.KEYS_FILE}",
        accounts=accounts,
    )


def plan_threads(inputs: Inputs) -> int:
    """Threads of one rank, or of a service: the whole cores that its pod asks for, shared by the pod's ranks."""
    role: Role = "learner" if inputs.spec.serve is None else "coordinator"
    wanted = user_settings(inputs, role).resources or inputs.template(role).resources
    cores = 0 if wanted is None else wanted.whole_cores
    return max(1, cores // inputs.spec.learner.processes_per_node)
