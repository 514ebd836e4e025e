"""What a step was trained on, sampled again: token for token in Exact, told where it is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from debug_kit import GRPO, build_config, change_config, fingerprint
from sampling_kit import record_sampled
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.debug.sampling import sample_again
from rollout.errors import SpecError, StoreError
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.objects.filesystem import FilesystemStore

pytestmark = pytest.mark.process


EVEN = """
def even(prompts, completions, rows):
    return [sum(token % 2 == 0 for token in c.token_ids) / len(c.token_ids) for c in completions]
"""


@pytest.fixture(scope="module")
def recorded(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampled") / "tiny-1"
    (folder.parent / "even.py").write_text(EVEN)
    rewards = [{"python": {"path": str(folder.parent / "even.py"), "function": "even"}}]
    record_sampled(build_config(folder, tiny_model, {**GRPO, "rewards": rewards, "maxSteps": 4}))
    return folder


@pytest.fixture
def run(recorded, tmp_path):
    return Path(shutil.copytree(recorded, tmp_path / "tiny-1"))


def test_the_run_has_learned_so_that_its_versions_differ(recorded):
    with LedgerReader(recorded / "ledger.db") as ledger:
        assert len({step.version.digest for step in ledger.steps()}) == 4


def views(folder, step):
    with LedgerReader(folder / "ledger.db") as ledger:
        return ledger.samples(step)


@pytest.mark.parametrize("step", [1, 2, 4])
def test_every_token_and_logprob_is_the_recorded_one_and_the_run_stays_as_it_was(run, step):
    before = fingerprint(run)

    found = sample_again(run, step)

    assert (found["exact"], found["equal"]) == (True, True)
    assert [line["logprob_gap"] for line in found["samples"]] == [0.0] * 12
    assert [version["step"] for version in found["versions"]] == [step - 1]
    texts = [view.trajectory.text for view in views(run, step)]
    assert [line["completion"] for line in found["samples"]] == texts
    assert len(set(texts)) > 1
    assert fingerprint(run) == before


def test_weights_that_are_gone_are_made_again_by_replay(run):
    with LedgerReader(run / "ledger.db") as ledger:
        record = ledger.record(3)
    assert record is not None
    FilesystemStore(run / "objects").delete(record.version.object)

    found = sample_again(run, 4)

    assert found["versions"] == [{"step": 3, "digest": record.version.digest, "replayed": True}]
    assert found["equal"]


def test_other_seeds_give_other_tokens_and_the_first_difference_is_told(run):
    change_config(run, lambda config: config["spec"].update(seed=8))
    found = sample_again(run, 1)

    assert not found["equal"]
    for line in found["samples"]:
        assert line["equal"] == (line["completion"] == line["recorded"])


def test_weights_that_differ_are_refused(run):
    def set_rate(config):
        config["spec"]["train"]["optimizer"]["adamw"]["learningRate"] = "2e-3"

    change_config(run, set_rate)
    with LedgerReader(run / "ledger.db") as ledger:
        record = ledger.record(1)
    FilesystemStore(run / "objects").delete(record.version.object)

    with pytest.raises(StoreError, match="see rollout debug train-only"):
        sample_again(run, 2)


def test_some_groups_are_enough(run):
    found = sample_again(run, 2, groups_max=1)

    assert len(found["samples"]) == 4
    assert found["equal"]


def test_a_run_on_rows_of_data_has_nothing_to_sample(sft_run):
    with pytest.raises(SpecError, match="nothing was sampled"):
        sample_again(sft_run, 1)


def test_a_step_that_is_not_there_is_refused(run):
    with pytest.raises(SpecError, match="committed steps 1 to 4"):
        sample_again(run, 5)


def test_the_command_says_so_and_exits_with_0(run):
    done = CliRunner().invoke(app, ["debug", "rollout-only", str(run), "--step", "2"])

    assert done.exit_code == 0, done.output
    assert "all 12 completions are the recorded ones, token for token" in done.stdout


def test_a_difference_in_exact_exits_with_1(run):
    change_config(run, lambda config: config["spec"].update(seed=8))
    words = ["debug", "rollout-only", str(run), "--step", "1", "--output", "json"]

    done = CliRunner().invoke(app, words)

    assert done.exit_code == 1
    assert json.loads(done.stdout)["equal"] is False
