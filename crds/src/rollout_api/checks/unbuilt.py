"""What the schema declares and nothing reads yet: refused by name, so that no field is accepted in vain.

An entry goes when the part that reads its field arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from rollout_api.checks.accelerators.memory import keeps_states
from rollout_api.checks.facts import Facts
from rollout_api.checks.pods.sandbox import check_sandbox
from rollout_api.checks.refusals import not_supported, unread
from rollout_api.checks.within import models_within
from rollout_api.places import SNAPSHOT_EXPECTED, parse_snapshot
from rollout_api.problems import Problem
from rollout_api.v1alpha1.common import ModelSource
from rollout_api.v1alpha1.data import FieldMapping, Jsonl
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.v1alpha1.snapshot import SnapshotSpec
from rollout_api.v1alpha1.storage import SnapshotObject

_FETCHED = frozenset({"s3", "gs"})
"""Copied before a run starts; in a cluster by the coordinator's pod, from what the runtime's lists name."""
_STORES = frozenset({*_FETCHED, "pvc"})
_WEB = "https"
_DATA_SCHEMES = frozenset({"", "file", "hf", *_FETCHED, _WEB})
SHOWN_MAX = 200


def runs_begin_with_what_is_there(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """A RolloutSnapshot is of a cluster; what a location names is read wherever the run is."""
    wanted = spec.restore_from
    if wanted is None:
        return
    if spec.train is None:
        yield not_supported(
            "spec.restoreFrom", "a snapshot for work that trains nothing", "leave it out"
        )
    elif wanted.request is not None and facts.platform == "local":
        fix = "leave it out, and ask by rollout run --resume ID --in-place, as often as you like"
        yield not_supported("spec.restoreFrom.request", "a request, on one machine,", fix)
    elif wanted.object is not None:
        yield from _names_a_snapshot(wanted.object, facts)
    elif facts.platform == "local":
        fix = "name it by its location, as object: {uri: ..., digest: ...}, or by rollout run --resume ID"
        yield not_supported("spec.restoreFrom", "a snapshot of a cluster, on one machine,", fix)


def _names_a_snapshot(given: SnapshotObject, facts: Facts) -> Iterator[Problem]:
    path, scheme = "spec.restoreFrom.object", urlsplit(given.uri).scheme
    known = ("s3", "gs") if facts.platform == "cluster" else ("s3", "gs", "file")
    if scheme not in known:
        fix = f"copy it to one of {', '.join(f'{one}://' for one in known)} (rollout snapshot copy)"
        yield not_supported(f"{path}.uri", f"a snapshot at {scheme}://", fix)
    elif parse_snapshot(given) is None:
        yield Problem(
            field=path,
            reason="InvalidValue",
            message=f"{given.uri[:SHOWN_MAX]!r} with digest {given.digest} names no snapshot",
            fix=f"{SNAPSHOT_EXPECTED}, as rollout snapshot show ID has them",
        )


def standbys_are_beside_the_learner(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """A standby shares a folder with the learner, and its processor: pods and devices would need places of their own."""
    if not spec.learner.standby:
        return
    fix = "leave it out: a learner that is lost is started again from its last anchor"
    if spec.train is None:
        yield not_supported("spec.learner.standby", "a standby for work that trains nothing", fix)
    elif facts.platform == "cluster":
        yield not_supported("spec.learner.standby", "a standby in a cluster", fix)
    elif facts.device_bytes or spec.learner.accelerator is not None:
        yield not_supported("spec.learner.standby", "a standby with devices", fix)


def states_are_offloaded_where_there_are_any(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Optimizer states lie in host memory for a learner that has some."""
    field = "spec.learner.optimizerOffload"
    if not spec.learner.optimizer_offload:
        return
    if spec.train is None:
        yield not_supported(field, "optimizerOffload of work without a learner", "leave it out")
    elif not keeps_states(spec.train):
        fix = "leave it out: sgd without momentum holds nothing from step to step"
        yield not_supported(field, "optimizerOffload of an optimizer without states", fix)


def episodes_are_conversations_in_text(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """What is to come keeps its place: prompts with images."""
    for path, model in models_within(spec, "spec"):
        if isinstance(model, FieldMapping) and model.image_field is not None:
            yield not_supported(
                f"{path}.imageField",
                "a prompt with images",
                "leave it out: text is what is trained on",
            )


def snapshots_hold_the_train_state(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Layers other than the train state and images of the learner, and labels, belong to snapshot objects."""
    others = [layer for layer in spec.snapshots.include if layer not in ("TrainState", "Process")]
    if others:
        what = f"a snapshot of {', '.join(others)}"
        yield not_supported("spec.snapshots.include", what, "leave it out, or write [TrainState]")
    if not spec.snapshots.keep_labeled:
        what = "a label on a snapshot"
        yield not_supported("spec.snapshots.keepLabeled", what, "leave it out")


def sources_come_from_known_places(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """Models, rows and parameters, wherever the spec names them.

    Both are fetched from buckets, rows from the web, too; the model of a training service in a cluster is not. Nothing
    reads ConfigMaps and Secrets as parameters.
    """
    fetches = facts.platform != "cluster" or spec.serve is None
    for path, model in models_within(spec, "spec"):
        if isinstance(model, ModelSource):
            yield from _model_from(model, path, fetches=fetches)
        elif isinstance(model, Jsonl):
            yield from _rows_from(model, path)
        elif getattr(model, "parameters_from", ()):
            yield not_supported(
                f"{path}.parametersFrom",
                "a parameter from a ConfigMap or Secret",
                "write parameters: [{name: ..., value: ...}]",
            )


def _model_from(model: ModelSource, path: str, *, fetches: bool) -> Iterator[Problem]:
    scheme = urlsplit(model.uri or "").scheme
    if scheme in _STORES and not (fetches and scheme in _FETCHED):
        yield not_supported(
            f"{path}.uri",
            f"a model at {scheme}://",
            "use hf://owner/name, file:///folder, or fromRun for the model of another run",
        )


def _rows_from(data: Jsonl, path: str) -> Iterator[Problem]:
    scheme = urlsplit(data.uri).scheme
    if scheme == _WEB and data.digest is None:
        yield Problem(
            field=f"{path}.digest",
            reason="MissingField",
            message=f"{data.uri.partition('?')[0]} may be another file tomorrow",
            fix="write the data's digest, as rollout plan --json prints it for the same file on this machine",
        )
    elif scheme not in _DATA_SCHEMES:
        yield not_supported(
            f"{path}.uri",
            f"data at {scheme}://",
            "name a file (file:///... or a path beside the manifest), hf://, or use huggingFace",
        )


_ROWS_OF_TRAINING = ("chosen_field", "rejected_field", "label_field", "margin_field")
_ORDER_OF_TRAINING = ("shuffle", "tail_batch")
_AS_THEY_LIE = "of an evaluation's rows, which are asked as they lie,"


def evaluations_ask_rows_in_order(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Rows of an evaluation are prompts, asked as they lie: nothing reads pairs, labels, an order or a tail."""
    for index, item in enumerate(spec.evaluations):
        data, path = item.suite.data, f"spec.evaluations[{index}].suite.data"
        if data is None:
            continue
        rows = data.value
        kind = type(data).model_fields[data.chosen].alias
        yield from unread(data, _ORDER_OF_TRAINING, path, _AS_THEY_LIE)
        yield from unread(rows, _ROWS_OF_TRAINING, f"{path}.{kind}", _AS_THEY_LIE)


def evaluations_judge_with_models_of_training(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A reward model is loaded for training's rewards only, and an evaluation would be given that one."""
    for index, item in enumerate(spec.evaluations):
        for place, reward in enumerate(item.suite.rewards):
            judges = reward.judge is not None and reward.judge.model is not None
            if reward.model is not None or judges:
                yield not_supported(
                    f"spec.evaluations[{index}].suite.rewards[{place}].{'judge.model' if judges else 'model'}",
                    "a reward model of an evaluation's own",
                    "leave suite.rewards out, and the evaluation scores with train.rewards, models included",
                )


def check_runtime(spec: RuntimeSpec) -> Iterator[Problem]:
    """The same for what a platform declares."""
    yield from check_sandbox(spec.sandbox)
    vllm = spec.engine.vllm if spec.engine else None
    if vllm is not None and vllm.weight_transfer != "File":
        what = f"weights moved by {vllm.weight_transfer}"
        yield not_supported("spec.engine.vllm.weightTransfer", what, "use File, or leave it out")
    if vllm is not None and vllm.sleep_level:
        field = "spec.engine.vllm.sleepLevel"
        yield not_supported(field, "an engine that sleeps in a cluster", "leave it out")


_TAKEN = frozenset({"TrainState", "Buffer", "EpisodicMemory"})
"""What a snapshot holds: the first two always, the third where environments have kept something."""


def check_snapshot(spec: SnapshotSpec) -> Iterator[Problem]:
    """What of a RolloutSnapshot is not acted on."""
    if spec.storage_ref is not None:
        yield not_supported("spec.storageRef", "another storage than the run's own", "leave it out")
    if others := [layer for layer in spec.include if layer not in _TAKEN]:
        fix = "leave it out: a snapshot holds TrainState, Buffer and, where there is any, EpisodicMemory"
        yield not_supported("spec.include", f"a snapshot of {', '.join(others)}", fix)


RULES = (
    runs_begin_with_what_is_there,
    standbys_are_beside_the_learner,
    states_are_offloaded_where_there_are_any,
    episodes_are_conversations_in_text,
    snapshots_hold_the_train_state,
    sources_come_from_known_places,
    evaluations_ask_rows_in_order,
    evaluations_judge_with_models_of_training,
)
