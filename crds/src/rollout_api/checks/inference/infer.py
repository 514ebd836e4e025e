"""Inference runs: where their results go, and which of their fields are acted on."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from rollout_api.checks.facts import Facts
from rollout_api.checks.refusals import not_supported, unread
from rollout_api.problems import Problem
from rollout_api.v1alpha1.inference.infer import Infer
from rollout_api.v1alpha1.inference.sampling import Sampling
from rollout_api.v1alpha1.run import RolloutRunSpec

_FOLDERS, _BUCKETS = frozenset({"", "file"}), frozenset({"s3"})
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


def inference_measures_nothing(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Evaluations are a run of their own."""
    if spec.infer is not None and spec.evaluations:
        yield not_supported("spec.evaluations", "measuring beside inference", "leave it out")


def inference_commits_no_steps(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Trackers of metrics are told of steps; those of events and plugins are told of the end, too."""
    for index, item in enumerate(() if spec.infer is None else spec.tracking):
        for name in ("tensorboard", "wandb", "mlflow", "jsonl"):
            if getattr(item, name) is not None:
                what = "tracking an inference run, which commits no steps,"
                fix = "leave it out; events and plugin are told how the run ends"
                yield not_supported(f"spec.tracking[{index}].{name}", what, fix)


def inference_reads_files(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Rows come from files of JSON lines or a data set, in their order, and what they hold beside the prompt is passed through."""
    if spec.infer is None:
        return
    data, path = spec.infer.data, "spec.infer.data"
    if data.hugging_face is not None and data.hugging_face.streaming:
        fix = "leave it out: every row is read before the first is answered, and kept as a line"
        what = "streaming of rows that are answered"
        yield not_supported(f"{path}.huggingFace.streaming", what, fix)
    if data.plugin is not None:
        fix = "write the rows to a file of JSON lines, and name it in jsonl"
        yield not_supported(f"{path}.plugin", "inference over the rows of a plugin", fix)
    yield from unread(data, _DATA_OF_TRAINING, path, "of inference, which answers every row once")
    scored = spec.infer.task == "Score"
    names = [one for one in _ROWS_OF_TRAINING if not (scored and one == "answer_field")]
    for name, fields in (("jsonl", data.jsonl), ("huggingFace", data.hugging_face)):
        if fields is not None:
            yield from unread(fields, names, f"{path}.{name}", "of a row that is answered")


def inference_writes_json_lines(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """Results are files of JSON lines: in a bucket, or in a folder of this machine, which pods do not have."""
    output = None if spec.infer is None else spec.infer.output
    if output is None:
        return
    scheme = urlsplit(output.uri).scheme
    if scheme not in _FOLDERS | _BUCKETS:
        what, fix = f"results at {scheme}://", "name a folder or s3://bucket/prefix"
        yield not_supported("spec.infer.output.uri", what, fix)
    elif scheme in _BUCKETS and not urlsplit(output.uri).path.strip("/"):
        yield Problem(
            field="spec.infer.output.uri",
            reason="InvalidValue",
            message=f"{output.uri} names a whole bucket",
            fix=f"add a prefix, such as {output.uri.rstrip('/')}/answers",
        )
    elif facts.platform == "cluster" and scheme in _FOLDERS:
        what = "a folder for results: pods of a cluster share none, and it"
        fix = "name s3://bucket/prefix, or leave it out: results go to the run's storage"
        yield not_supported("spec.infer.output.uri", what, fix)


def inference_samples_as_engines_do(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """The embedded engine draws from the whole distribution."""
    if spec.infer is None:
        return
    what = "that cuts or bends the distribution"
    yield from unread(spec.infer.sampling, _BENDING, "spec.infer.sampling", what)


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


def vectors_and_scores_are_not_sampled(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A row has one vector or one score, by an engine that gives them."""
    infer = spec.infer
    if infer is None or infer.task == "Generate":
        return
    given = {
        "sampling": infer.sampling != Sampling(),
        "samplesPerPrompt": infer.samples_per_prompt != 1,
        "logprobs": infer.logprobs,
    }
    for name in (name for name, is_given in given.items() if is_given):
        what = f"{name} beside task: {infer.task}, which samples nothing,"
        yield not_supported(f"spec.infer.{name}", what, "leave it out")
    engine = spec.actors.chosen_engine
    if not engine.capabilities.pooling:
        fix = "take the embedded engine, or send the batch to rollout infer serve, which has vLLM, too"
        what = f"task: {infer.task} by the engine {engine.name} in an inference run"
        yield not_supported("spec.infer.task", what, fix)


RULES = (
    vectors_and_scores_are_not_sampled,
    inference_measures_nothing,
    inference_commits_no_steps,
    inference_reads_files,
    inference_writes_json_lines,
    inference_samples_as_engines_do,
    lengths_of_inference_are_ordered,
)
