"""Gives a run without a learner its one weight version: ``python -m rollout.entrypoints.model --config W``.

On one machine a process of its own, in a cluster a child in the coordinator's pod, which holds the model already. It calls in the learner's place and leaves: the model's files become version 0 as they do in training, with the same
cast and digest, and no step follows. Started again it finds the version there, compares, and leaves.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path

from torch import Tensor

from rollout.entrypoints.config import parse_arguments, read_worker_config, run_process
from rollout.errors import RolloutError, SpecError
from rollout.learner import hash_chain as chain
from rollout.learner.model.policy import DTYPES, freeze, load_model
from rollout.learner.publish import publish
from rollout.objects.opening import open_store
from rollout.protocol import routes
from rollout.protocol.client import CoordinatorClient
from rollout.protocol.messages import Failed, LearnerStart, Outcome, PublishInitial
from rollout.types import WeightVersion
from rollout.weights.digest import load_weights
from rollout_api.worker import WorkerConfig

log = logging.getLogger(__name__)

WORKER = "learner"


def main() -> None:
    """Publish version 0 and leave."""
    config = read_worker_config(parse_arguments(__doc__).config)
    client = CoordinatorClient.open(config, "learner").as_worker(WORKER)
    start = LearnerStart(pid=os.getpid(), host=socket.gethostname())
    started = client.call(routes.START, start)
    client = client.as_worker(WORKER, started.incarnation)
    try:
        version = _publish(config)
        if started.initial is None:
            link = chain.first_link(config.spec_digest, version.digest)
            client.call(routes.PUBLISH_INITIAL, PublishInitial(version=version, chain=link))
        else:
            _require_same(started.initial, version)
    except SpecError as error:
        client.call(routes.FAILED, Failed(kind=type(error).__name__, message=str(error)))
        raise
    log.info("version published digest=%s", version.digest)
    try:
        client.call(routes.LEARNER_OUTCOME, Outcome(ok=True, message="the model is published"))
    except RolloutError as error:
        log.warning("could not report the end error=%s", error)


def _require_same(initial: WeightVersion, version: WeightVersion) -> None:
    if initial.digest != version.digest:
        raise SpecError(
            f"spec.model: the run began with weights {initial.digest}, the model's files now hold"
            f" {version.digest}; put the old files back or start a new run"
        )


def _publish(config: WorkerConfig) -> WeightVersion:
    weights = _weights(config)
    # In a cluster it stands in the coordinator's pod, whose folder is the store itself.
    place = "learner" if config.authentication is None else "coordinator"
    return publish(weights, open_store(config, place), lineage=0, step=0)


def _weights(config: WorkerConfig) -> dict[str, Tensor]:
    """The model's parameters; of rows that are embedded or scored, all that its files have."""
    folder, dtype = Path(config.resolved.model_path), DTYPES[config.resolved.dtype]
    infer = config.spec.infer
    if infer is not None and infer.task != "Generate":
        return {name: one.to(dtype) for name, one in load_weights(folder).items()}
    model = freeze(load_model(folder), dtype)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


if __name__ == "__main__":
    code = run_process(main)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # taking torch down decently takes a second and saves nothing
