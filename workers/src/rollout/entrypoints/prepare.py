"""Makes a pod's ``worker.json``: ``python -m rollout.entrypoints.prepare ROLE --order O``; then ends.

The coordinator's pod looks at model and data, which it has fetched where they lie in a bucket. The others take what it has
found, and check that the model's files here are the same ones. The look is a child's, which may run the author's code and load torch to build a model.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from rollout.common.atomic_files import replace_text
from rollout.coordinator.rows import name_field
from rollout.entrypoints.config import run_process
from rollout.errors import DataError, SpecError
from rollout.models.files import ModelFiles, digest_model
from rollout.models.resolve import resolve_model
from rollout.models.roles import further_models
from rollout.plugins.author import author_environment, look_environment
from rollout.plugins.guard import hide_memory
from rollout.plugins.row_host import connect_socket, look, start_child
from rollout.plugins.row_messages import Look
from rollout.pods.orders import config_path, read_order
from rollout.pods.placing import read_refusal
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.messages import Role
from rollout.runs.model_transfer import POLICY, bring_models, fetch_far, take_models
from rollout.runs.plan.servers import list_servers
from rollout.runs.resolve import ModelFacts, Resolution, ResolveRequest, believe
from rollout.runs.wheels import place_wheel
from rollout.runs.worker_config import choose_dtype, complete
from rollout.tools.sandbox.chosen import use_sandboxes
from rollout.turns import ToolSpec
from rollout_api.v1alpha1.common import ModelSource
from rollout_api.v1alpha1.storage import Code
from rollout_api.worker import ResolvedRun, WorkerConfig, WorkerOrder

log = logging.getLogger(__name__)
T = TypeVar("T")

COORDINATOR_SECONDS_MAX = 1800.0
"""How long a worker waits for its coordinator, which may be fetching a model."""


def main() -> None:
    """Write one configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("coordinator", "learner", "actor"))
    parser.add_argument("--order", type=Path, required=True, help="the WorkerOrder file")
    arguments = parser.parse_args()
    hide_memory()
    role = arguments.role
    order, code = place_code(read_order(arguments.order), role)
    config = resolve_locally(order, code) if role == "coordinator" else ask(order, role, code)
    path = config_path(order)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, config.model_dump_json(exclude_none=True, indent=1))


def place_code(order: WorkerOrder, role: Role) -> tuple[WorkerOrder, str | None]:
    """Unpack the user's wheel: the order with the folder in its place, and the wheel's digest.

    The coordinator's goes where the container that runs its code reads it. Raises SpecError and StoreError.
    """
    code = order.spec.code
    if code is None or code.wheel is None:
        return order, None
    apart = order.layout.wheel_dir if role == "coordinator" else None
    folder = Path(apart or order.layout.run_dir) / "code"
    digest = place_wheel(code.wheel, folder, order.spec.storage)
    spec = order.spec.model_copy(update={"code": Code(path=str(folder))})
    return order.model_copy(update={"spec": spec}), digest


def resolve_locally(order: WorkerOrder, code: str | None = None) -> WorkerConfig:
    """Resolve model and data here. Raises SpecError, DataError or StoreError."""
    spec = order.spec
    packed = fetch_far(order)
    brought = bring_models(order)
    request = ResolveRequest(
        spec=spec.model_dump(mode="json", exclude_none=True),
        model_path=brought.pop(POLICY, None),
        models=brought,
        server_tools=list_in_pods(order),
    )
    accelerated = bool(spec.learner.accelerator or spec.actors.accelerator)
    config = complete(
        order, look_apart(request, order), choose_dtype(spec, accelerated=accelerated)
    )
    found = {"code_digest": code, "packed_models": packed}
    resolved = config.resolved.model_copy(update=found)
    return config.model_copy(update={"resolved": resolved})


def list_in_pods(order: WorkerOrder) -> dict[str, tuple[ToolSpec, ...]]:
    """What servers of tools say of them, each asked in a sandbox pod. Raises SpecError for one that lists none."""
    environment = order.spec.train.environment if order.spec.train else None
    if environment is None or not environment.mcp_servers:
        return {}
    from rollout.coordinator.sandboxes.own import own_sandboxes

    maker = own_sandboxes(order)
    if maker is None:
        raise SpecError(
            "spec.train.environment.mcpServers: this run was started without sandbox pods: start it again"
        )
    use_sandboxes(maker)
    return list_servers(order.spec)


def look_apart(request: ResolveRequest, order: WorkerOrder) -> Resolution:
    """What children find that have nothing of this pod's variables; the author's code runs in another container. Raises as ``resolve``."""
    spec, socket = order.spec, order.layout.rows_socket
    field = name_field(spec)
    if not spec.brings_data_code:
        here = partial(start_child, look_environment(os.environ, spec))
        return _decode(look(here, _look(request), field), Resolution, field)
    if socket is None:  # rendered by an operator from before there was such a container
        here = partial(start_child, author_environment(os.environ, spec))
        return _decode(look(here, _look(request), field), Resolution, field)
    here = partial(start_child, look_environment(os.environ, spec))
    models = look(here, _look(request, models_only=True), "spec.model")
    known = _decode(models, ModelFacts, "spec.model")
    asked = _look(msgspec.structs.replace(request, known=known))
    found = look(partial(connect_socket, Path(socket)), asked, field)
    return believe(_decode(found, Resolution, field), known, field)


def _look(request: ResolveRequest, *, models_only: bool = False) -> Look:
    return Look(request=msgspec.json.encode(request), models_only=models_only)


def _decode(found: bytes, kind: type[T], field: str) -> T:
    try:
        return msgspec.json.decode(found, type=kind)
    except msgspec.DecodeError as error:
        raise DataError(f"{field}: what was found is no {kind.__name__}: {error}") from error


def ask(order: WorkerOrder, role: Role, code: str | None = None) -> WorkerConfig:
    """What the coordinator has found, with models where they lie in this pod.

    Raises CoordinatorError when it does not answer, SpecError when a model or the wheel is another one here.
    """
    if refusal := read_refusal(order):
        raise refusal
    found = ask_config(order, role)
    resolved = found.resolved
    if code != resolved.code_digest:
        raise SpecError(
            f"spec.code.wheel is {code} in this pod and {resolved.code_digest} in the coordinator's: name "
            "its digest, and a file that does not change"
        )
    folders = find_models(order, role, resolved)
    policy = folders.pop(POLICY)
    here = resolved.model_copy(update={"model_path": policy, "models": folders})
    given = {name: getattr(order, name) for name in WorkerOrder.model_fields}
    return WorkerConfig(
        **given,
        spec_digest=found.spec_digest,
        identity_format=found.identity_format,
        resolved=here,
    )


def ask_config(order: WorkerOrder, role: Role) -> WorkerConfig:
    """What the coordinator has found, waited for. Raises CoordinatorError when it does not answer."""
    client = CoordinatorClient.open(order, role, patience_seconds=COORDINATOR_SECONDS_MAX)
    try:
        return WorkerConfig.model_validate_json(client.config())
    finally:
        client.close()


def find_models(order: WorkerOrder, role: Role, resolved: ResolvedRun) -> dict[str, str]:
    """Folders of all models of the run in this pod, by role, each of the digest that the coordinator has found.

    Raises SpecError and StoreError.
    """
    taken = take_models(order, role, resolved.packed_models)
    wanted = [(POLICY, "spec.model", order.spec.model, resolved.model_digest)]
    wanted += [
        (one.role, one.field, one.source, resolved.model_digests[one.role])
        for one in further_models(order.spec)
    ]
    return {
        name: find_here(field, source, digest, taken.get(name))
        for name, field, source, digest in wanted
    }


def find_here(field: str, source: ModelSource, digest: str, taken: str | None = None) -> str:
    """The folder of a model in this pod; ``taken`` is one that another run has made. Raises SpecError."""
    if source.uri is None:
        raise SpecError(f"{field}: names no uri; the operator fills it in from the run it names")
    if taken is None:
        files = resolve_model(source.uri, revision=source.revision)
    else:
        files = ModelFiles(uri=source.uri, path=Path(taken), digest=digest_model(Path(taken)))
    if files.digest != digest:
        raise SpecError(
            f"{field} {source.uri} is {files.digest} in this pod and {digest} in the coordinator's:"
            " give every pod the same model, or name a revision"
        )
    return str(files.path)


if __name__ == "__main__":
    sys.exit(run_process(main))
