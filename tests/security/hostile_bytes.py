"""Feeds one parser with broken input under a memory limit: ``python hostile_bytes.py PARSER CASES``; not a test itself.

A parser may return, or refuse with an error of ours. Anything else, and memory past the limit, ends this process.
"""

import io
import os
import struct
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import zstandard
from hostile_kit import blobs, main, texts

from rollout.codec import decode_body, encode_body
from rollout.common import bounded
from rollout.common.frames import read_frame
from rollout.coordinator.rules.numbers import are_usable, check_numbers, find_wrong_numbers
from rollout.data.files import find_files
from rollout.data.jsonl import BadRecord, parse_line
from rollout.errors import RolloutError
from rollout.models.experts.families import ExpertShape
from rollout.models.experts.routes import find_wrong_routes
from rollout.models.packed import pack, unpack
from rollout.protocol import messages as m
from rollout.rewards.frames import RewardAnswer
from rollout.runs.formatting import format_manifest
from rollout.runs.manifest import load_documents
from rollout.runs.validation import parse_scalar
from rollout.types import ExpertRoutes, Trajectory, VersionSpan
from rollout_api.checks import check_document
from rollout_api.visible import visible

MANIFEST = """apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: x}
spec:
  model: {uri: rollout://tiny-adder}
  train:
    algorithm: {grpo: {promptsPerStep: 2, groupSize: 2}}
    environment: {builtin: {name: arithmetic}}
    rewards: [{builtin: {name: exact-match}}]
    maxSteps: 1
"""
TOML = 'schema_version = 1\n[model]\nuri = "rollout://tiny-adder"\n[[rewards]]\nweight = 1.0\n'
TRAJECTORY = Trajectory(
    ordinal=0, sample=0, prompt_ids=(1, 2), token_ids=(3,), actor_logprobs=(-0.1,), loss_mask=(1,),
    spans=(VersionSpan(start=0, end=1, lineage=0, step=0),), rewards={"a": 1.0}, reward=1.0, ending="stop",
)  # fmt: skip


def read_manifest(folder, text, name="run.yaml"):
    path = folder / name
    path.write_bytes(text.encode(errors="surrogatepass"))
    for document in load_documents(path):
        for problem in check_document(document.data):
            document.line(problem.field)
            visible(str(problem))


def read_toml(folder, text):
    read_manifest(folder, text, "run.toml")


def read_formatted(folder, text):
    try_each([lambda: format_manifest("run.yaml", text), lambda: format_manifest("run.toml", text)])


def read_scalar(folder, text):
    parse_scalar(text)


def read_archive(folder, data):
    with tempfile.TemporaryDirectory(dir=folder) as place:
        packed, target = Path(place, "packed"), Path(place, "model")
        packed.write_bytes(data)
        try:
            unpack(packed, target)
        finally:
            assert {one.name for one in Path(place).iterdir()} <= {"packed", "model"}
            assert not any(one.is_symlink() for one in Path(place).rglob("*"))


def read_body(folder, data):
    for made in decode_body(data):
        check_numbers(made)


def read_plain_body(folder, data):
    read_body(folder, zstandard.compress(data))


def read_zstd(folder, data):
    try:
        assert len(bounded.unpack_zstd(data, 1 << 16)) <= 1 << 16
    except ValueError as error:
        raise RolloutError(str(error)) from error


def read_answer(folder, data):
    ours, theirs = os.pipe()
    try:
        os.write(theirs, struct.pack("<Q", len(data)) + data)
        os.close(theirs)
        read_frame(ours, RewardAnswer, bytes_max=1 << 20)
    except (ValueError, EOFError) as error:
        raise RolloutError(str(error)) from error
    finally:
        os.close(ours)


def read_submission(folder, data):
    def read(decode):
        try:
            for result in decode(data, type=m.Submit).results:
                wrong = find_wrong_numbers(result.trajectories)
                assert are_usable(result.trajectories) == (wrong == "")
                if not wrong:
                    find_wrong_routes(
                        result.trajectories, ExpertShape(layers=2, experts=4, top_k=2)
                    )
        except bounded.UNREADABLE as error:
            raise RolloutError(str(error)) from error

    try_each([partial(read, msgspec.json.decode), partial(read, msgspec.msgpack.decode)])


def try_each(ways):
    """Read in every way; refused where every one refuses."""
    refusals = []
    for way in ways:
        try:
            way()
        except RolloutError as error:
            refusals.append(error)
    if len(refusals) == len(ways):
        raise refusals[-1]


def read_rows(folder, data):
    path = folder / "rows.jsonl.zst"
    path.write_bytes(data)
    find_files(str(path), folder, folder / "cache")


def read_record(folder, data):
    try:
        msgspec.msgpack.encode(parse_line(data))
    except BadRecord as error:
        raise RolloutError(str(error)) from error


RECORD = (
    b'{"prompt": "1+1", "answer": {"a": [2, 1.5e3, "\\ud83d\\ude00"]}, "n": 18446744073709551615}'
)


def archive():
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"\x01" * 600)
        out = io.BytesIO()
        for part in pack(folder):
            out.write(part)
        return out.getvalue()


BODY = encode_body([TRAJECTORY])
PLAIN = zstandard.decompress(BODY)
ROUTES = ExpertRoutes(num_layers=2, top_k=2, wide=False, chosen=bytes((0, 1, 2, 3)) * 2)
ROUTED = replace(TRAJECTORY, routes=ROUTES)
RESULT = m.TaskResult(task_id="t/0", epoch=1, trajectories=(TRAJECTORY, ROUTED))
SUBMIT = msgspec.json.encode(m.Submit(results=(RESULT,)))
ARCHIVE = archive()
ZEROS = zstandard.compress(bytes(1 << 15))
ANSWER = msgspec.msgpack.encode(RewardAnswer(values=[1.0, {"a": 2}]))
ROWS = zstandard.compress(b'{"prompt": "1"}\n' * 100)
RECORDS = blobs(RECORD) | texts(RECORD.decode()).map(lambda one: one.encode(errors="replace"))
PARSERS = {
    "manifest": (read_manifest, texts(MANIFEST), MANIFEST),
    "toml": (read_toml, texts(TOML), TOML),
    "formatted": (read_formatted, texts(MANIFEST), MANIFEST),
    "scalar": (read_scalar, texts("[1, {a: b}]"), "[1, {a: b}]"),
    "archive": (read_archive, blobs(ARCHIVE), ARCHIVE),
    "body": (read_body, blobs(BODY), BODY),
    "plain-body": (read_plain_body, blobs(PLAIN), PLAIN),
    "zstd": (read_zstd, blobs(zstandard.compress(bytes(1 << 20))), ZEROS),
    "answer": (read_answer, blobs(ANSWER), ANSWER),
    "submission": (read_submission, blobs(SUBMIT), SUBMIT),
    "record": (read_record, RECORDS, RECORD),
    "rows": (read_rows, blobs(ROWS), ROWS),
}

if __name__ == "__main__":
    main(PARSERS.__getitem__)
