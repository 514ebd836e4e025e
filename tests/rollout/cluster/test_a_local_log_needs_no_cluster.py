"""``rollout logs tail`` reads a run of this machine unless a cluster is asked for: `-n` is a number of lines."""

import os
import sys

import pytest

from rollout.cli.main import main


def test_the_number_of_lines_is_no_namespace(monkeypatch, capsys, tmp_path):
    log = tmp_path / "first" / "logs" / "learner.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\nthree\n")
    (tmp_path / "first" / "worker.json").write_text("{}")
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    monkeypatch.setattr(sys, "argv", ["rollout", "logs", "tail", "first", "-n", "2"])

    with pytest.raises(SystemExit) as ended:
        main()

    assert not ended.value.code
    assert capsys.readouterr().out.splitlines() == ["learner: two", "learner: three"]
