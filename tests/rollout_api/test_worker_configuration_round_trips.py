"""WorkerConfig: the file that every worker reads says the same after writing and reading."""

import json

import pytest
from pydantic import ValidationError

from rollout_api import parse_run, resolve
from rollout_api.worker import Layout, ResolvedRun, RunIdentity, WorkerConfig

DIGEST = "blake3:" + "0" * 64


def config():
    run = parse_run(
        {
            "schema_version": 1,
            "name": "a",
            "model": {"uri": "rollout://tiny-adder"},
            "train": {"algorithm": {"grpo": {"clipHigh": 0.28}}, "maxSteps": 3},
        }
    )
    return WorkerConfig(
        run=RunIdentity(name="a", uid="a-1"),
        spec_digest=DIGEST,
        spec=resolve(run.spec).spec,
        resolved=ResolvedRun(
            model_path="m", model_digest=DIGEST, dtype="Float32", prompt_tokens_max=16
        ),
        layout=Layout(
            run_dir="r",
            coordinator_url="http://127.0.0.1:1",
            token_file="t",
            objects_dir="o",
            ledger_path="l",
        ),
    )


def test_it_reads_back_as_it_was_written():
    written = config().model_dump_json()

    assert WorkerConfig.model_validate_json(written) == config()


def test_it_is_camel_case_outside():
    document = json.loads(config().model_dump_json())

    assert document["resolved"]["promptTokensMax"] == 16
    assert document["spec"]["train"]["algorithm"]["grpo"]["clipHigh"] == "0.28"


def test_a_field_of_another_version_is_refused():
    document = json.loads(config().model_dump_json()) | {"extra": 1}

    with pytest.raises(ValidationError, match="extra"):
        WorkerConfig.model_validate(document)
