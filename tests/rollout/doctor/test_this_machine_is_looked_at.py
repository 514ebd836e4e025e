"""Looks are bounded and a failed one is a fact: a folder that takes nothing, a hub that is away, a torch that breaks."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.doctor import observe
from rollout.doctor.facts import TorchFacts


def test_a_folder_that_will_be_made_is_judged_by_the_one_that_is_there(tmp_path):
    found = observe.look_at_folder(tmp_path / "runs" / "mine")

    assert found.path == str(tmp_path / "runs" / "mine")
    assert found.free > 0
    assert found.error == ""


def test_a_folder_that_takes_nothing_says_why(tmp_path):
    (tmp_path / "runs").write_text("a file")

    assert observe.look_at_folder(tmp_path / "runs").error == "Not a directory"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 2025", "580.65.06"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124  Release", "570.124"),
        ("\0\xff nothing", ""),
    ],
)
def test_the_drivers_version_is_read_from_what_it_says(tmp_path, text, version):
    (tmp_path / "version").write_text(text)

    assert observe.read_driver(tmp_path / "version") == version
    assert observe.read_driver(tmp_path / "none") == ""


@pytest.mark.parametrize("named", ["/there/is/none", "."])
def test_an_interpreter_that_cannot_be_run_is_a_fact(named):
    found = observe.ask_sglang({"ROLLOUT_SGLANG_PYTHON": named})

    assert (found.python, found.version) == (named, "")
    assert "ROLLOUT_SGLANG_PYTHON" in found.error


def test_an_environment_without_sglang_says_so():
    found = observe.ask_sglang({"ROLLOUT_SGLANG_PYTHON": sys.executable})

    assert "sglang" in found.error
    assert observe.ask_sglang({}).python == ""


def test_a_hub_that_is_away_is_a_fact(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    assert observe.ask_hub("http://127.0.0.1:1").error
    assert observe.ask_hub("no address").error


def test_a_hub_is_not_asked_offline_and_its_token_is_not_told(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    found = observe.ask_hub("http://127.0.0.1:1")

    assert (found.offline, found.error, found.has_token) == (True, "", True)
    assert "hf_secret" not in repr(found)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys; sys.exit('ImportError: libcudart.so is missing')", "libcudart.so is missing"),
        ("import os; os.abort()", "exit code -6"),
    ],
)
def test_a_torch_that_breaks_ends_its_own_process_only(tmp_path, monkeypatch, program, words):
    broken = tmp_path / "python"
    broken.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}"\n')
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))

    assert words in observe.ask_torch().error


@pytest.mark.process
def test_the_command_tells_of_this_machine(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    said = CliRunner().invoke(app, ["doctor", "--output", "json"])

    found = {one["name"]: one for one in json.loads(said.stdout)}
    assert found["torch"]["state"] == "ok"
    assert found["hub"]["found"].startswith("offline")
    assert said.exit_code == int(any(one["state"] == "broken" for one in found.values()))
    assert "runs work here" in CliRunner().invoke(app, ["doctor"]).stdout or said.exit_code


def test_a_broken_machine_is_told_by_the_exit_code(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(observe, "ask_torch", lambda: TorchFacts(error="No module named 'torch'"))

    said = CliRunner().invoke(app, ["doctor"])

    assert said.exit_code == 1
    assert "BROKEN torch" in said.stdout
    assert "runs will not work here" in said.stdout
