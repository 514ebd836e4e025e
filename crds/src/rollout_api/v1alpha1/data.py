"""Where rows come from and which of their fields mean what."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from rollout_api.base import ApiModel, Digest, Name, OneOf, Real, Text, Uri, filled, many
from rollout_api.v1alpha1.common import Parameters

FilePath = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class FieldMapping(ApiModel):
    """Which fields of a row hold what. Only the ones an algorithm needs are looked at."""

    prompt_field: Name = filled("prompt")
    """Field with the prompt's text; ignored when `messagesField` is set."""
    answer_field: Name = filled("answer")
    """Field with the answer: the target of sft, what rewards compare with in RL."""
    messages_field: Name | None = None
    """Field with a list of {role, content}; the last assistant message is the answer of sft, which learns calls of tools
    in OpenAI's form, too, and shows the prompt the tools of the row's field `tools`."""
    chosen_field: Name = filled("chosen")
    """Field with the preferred answer (rm, dpo, ipo, orpo, simpo): text, or messages that end in it."""
    rejected_field: Name = filled("rejected")
    """Field with the other answer, in the same form."""
    label_field: Name = filled("label")
    """Field that is true for a good answer and false for a bad one (kto); the answer is `answerField`."""
    margin_field: Name | None = None
    """Field with the wanted margin between the scores of a pair (rm). Unset: 0."""
    image_field: Name | None = None
    """Field with the prompt's images; text is all that is trained on so far. Not supported by this version: refused."""
    system_prompt: Text | None = None
    """Put before every conversation as its system message."""
    template: Text | None = None
    """The user message, with {field} replaced by the row's value. Unset: the prompt as it is."""


class Jsonl(FieldMapping):
    """One JSON object a line; plain, gzip or zstd by its suffix, or the rows of a `.parquet` file."""

    uri: Uri
    """File, folder or glob: `file://`, `hf://`, or a path beside the manifest. One file at `s3://`, `gs://` or `https://` (with a digest) is fetched; in a cluster by the coordinator's pod, from places that the runtime's `allowed.storage` names."""
    digest: Digest | None = None
    """Expected identity of the data. Unset: resolved at plan time and recorded."""


class HuggingFace(FieldMapping):
    """A data set of the Hugging Face hub, or a folder saved by `datasets`."""

    path: Uri
    """Name on the hub (owner/name) or a folder."""
    name: Name | None = None
    """Configuration of the data set."""
    split: Name = filled("train")
    """Split of the data set to read."""
    revision: Name | None = None
    """Commit, tag or branch. Unset: resolved at plan time and recorded."""
    streaming: bool = filled(default=False)
    """Read while training instead of downloading first; shuffles within a window."""


class PluginRows(FieldMapping):
    """A plugin of the user's own that gives the rows, from a process of its own; on one machine only."""

    path: FilePath
    """Folder of the run's code with its `plugin.yaml` (see `code`)."""
    split: Name = filled("train")
    """What it is asked for, where it has several sets of rows."""
    parameters: Parameters = many(64, key="name")
    """What it is configured with, as text."""


class Data(OneOf):
    """The rows of a run."""

    members: ClassVar[tuple[str, ...]] = ("jsonl", "hugging_face", "plugin")

    jsonl: Jsonl | None = None
    """Files of JSON lines."""
    hugging_face: HuggingFace | None = None
    """A Hugging Face data set."""
    plugin: PluginRows | None = None
    """Rows of a plugin of the user's own."""
    shuffle: bool = filled(default=True)
    """Draw a new order from `seed` for each epoch."""
    tail_batch: Literal["Drop", "Short"] = filled("Drop")
    """What happens to the rows of an epoch that do not fill a step: dropped, or a short step."""
    on_bad_record: Literal["Fail", "Skip"] = filled("Fail")
    """A row that cannot be used stops the run with its line number, or is skipped and counted."""
    eval_fraction: Real = filled(0.0, ge=0, lt=1)
    """Share of the rows held out for evaluations, by a hash of the prompt: the same in every run."""


class ModelOutput(ApiModel):
    """Where a trained model is written."""

    uri: Uri
    """Folder, `s3://bucket/prefix` or `gs://bucket/prefix`: empty when the run begins; a whole model or none."""


class Output(ApiModel):
    """Where results are written."""

    uri: Uri
    """Folder or prefix; files appear under it whole or not at all."""
    format: Literal["Jsonl", "Parquet"] = Field(default="Jsonl")
    """Form of the files."""
