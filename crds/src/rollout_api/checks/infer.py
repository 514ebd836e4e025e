"""Inference runs: where they run in this version, and which of their fields are acted on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from pydantic import BaseModel

from rollout_api.checks.facts import Facts
from rollout_api.problems import Problem
from rollout_api.v1alpha1.infer import Infer
from rollout_api.v1alpha1.run import RolloutRunSpec

_OUTPUT_SCHEMES = frozenset({"", "file"})
_DATA_OF_TRAINING = ("shuffle", "tail_batch", "on_bad_record", "eval_fraction")
_ROWS_OF_TRAINING = (
    "answer_field",
    "chosen_field",
    "rejected_field",
    "label_field",
    "margin_field",
)
_BENDING = (
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


def inference_runs_on_one_machine(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """The operator starts no run without a learner."""
    if spec.infer is not None and facts.platform == "cluster":
        fix = "run it on one machine: rollout run -f, or rollout infer batch"
        yield _unbuilt("spec.infer", "batch inference in a cluster", fix)


def inference_reads_files(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Rows come from files of JSON lines, in their order, and what they hold beside the prompt is passed through."""
    if spec.infer is None:
        return
    data, path = spec.infer.data, "spec.infer.data"
    if data.hugging_face is not None:
        fix = "write the rows to a file of JSON lines, and name it in jsonl"
        yield _unbuilt(f"{path}.huggingFace", "inference over a data set of the hub", fix)
    yield from _unread(data, _DATA_OF_TRAINING, path, "of inference, which answers every row once")
    if data.jsonl is not None:
        yield from _unread(
            data.jsonl, _ROWS_OF_TRAINING, f"{path}.jsonl", "of a row that is answered"
        )


def inference_writes_json_lines_here(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Results are files of JSON lines on this machine."""
    output = None if spec.infer is None else spec.infer.output
    if output is None:
        return
    scheme = urlsplit(output.uri).scheme
    if scheme not in _OUTPUT_SCHEMES:
        what, fix = f"results at {scheme}://", "name a folder, and copy the files from there"
        yield _unbuilt("spec.infer.output.uri", what, fix)
    if output.format != "Jsonl":
        what = f"results as {output.format}"
        yield _unbuilt("spec.infer.output.format", what, "use Jsonl, or leave it out")


def inference_samples_as_engines_do(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """The embedded engine draws from the whole distribution of a whole model."""
    if spec.infer is None:
        return
    what = "that cuts or bends the distribution"
    yield from _unread(spec.infer.sampling, _BENDING, "spec.infer.sampling", what)
    engine = spec.actors.engine
    if engine is not None and engine.vllm is not None:
        fix = "use embedded, or leave it out"
        yield _unbuilt("spec.actors.engine.vllm", "inference with vLLM", fix)
    if spec.model.lora is not None:
        yield _unbuilt("spec.model.lora", "an adapter of an inference run", "leave it out")
    if spec.evaluations:
        yield _unbuilt("spec.evaluations", "measuring beside inference", "leave it out")
    if spec.actors.autoscale is not None:
        fix = "set actors.replicas"
        yield _unbuilt("spec.actors.autoscale", "autoscaling of an inference run", fix)


def lengths_of_inference_are_ordered(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A least length above the largest cannot be met."""
    infer: Infer | None = spec.infer
    if infer is None:
        return
    if infer.sampling.min_new_tokens > infer.sampling.new_tokens_max:
        yield Problem(
            field="spec.infer.sampling.minNewTokens",
            reason="EmptyRange",
            message=f"minNewTokens {infer.sampling.min_new_tokens} is above maxNewTokens"
            f" {infer.sampling.new_tokens_max}",
            fix="lower minNewTokens",
        )


def _unread(model: BaseModel, names: Sequence[str], path: str, why: str) -> Iterator[Problem]:
    for name in names:
        info = type(model).model_fields[name]
        if getattr(model, name) != info.default:
            yield _unbuilt(f"{path}.{info.alias}", f"{info.alias} {why}", "leave it out")


def _unbuilt(field: str, what: str, fix: str) -> Problem:
    message = f"{what} is not supported by this version"
    return Problem(field=field, reason="NotSupported", message=message, fix=fix)


RULES = (
    inference_runs_on_one_machine,
    inference_reads_files,
    inference_writes_json_lines_here,
    inference_samples_as_engines_do,
    lengths_of_inference_are_ordered,
)
