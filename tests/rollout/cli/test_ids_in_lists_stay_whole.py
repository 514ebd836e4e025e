"""Lists on narrow terminals: what people copy is never broken, every row is one line, other columns are cut."""

from __future__ import annotations

import io

import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st

from rollout.cli.output import GAP, fit_columns, print_list

ID = "1ab3d04a2c174f6a89e1b2c3d4e5f607:train:0"
COLUMNS = ("RUN", "ALGORITHM", "OUTCOME", "STEP", "REWARD", "MODEL")
ROWS = [
    (ID, "service", "stands at call 2048", 1024, None, "rollout://Qwen/Qwen2.5-0.5B-Instruct"),
    ("arithmetic", "grpo", "Succeeded", 200, 0.98, "rollout://tiny-adder"),
    ("broken", None, "unreadable: the ledger is of format 9:\nupgrade", None, None, None),
    ("wide", "sft", "言葉" * 40, 1, 0.5, "m"),
]


@pytest.fixture
def shown(monkeypatch):
    def show(width, terminal=True):
        console = rich.console.Console
        file = io.StringIO()
        monkeypatch.setattr(
            rich.console,
            "Console",
            lambda: console(file=file, width=width, force_terminal=terminal, color_system=None),
        )
        print_list(COLUMNS, ROWS)
        return file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()

    return show


def test_a_list_at_120_columns(shown):
    assert shown(120)[:4] == [
        "RUN                                       ALGORITHM  OUTCOME                    STEP  REWARD  MODEL",
        "1ab3d04a2c174f6a89e1b2c3d4e5f607:train:0  service    stands at call 2048        1024  -       rollout://Qwen/Qwen2.5-0.…",
        "arithmetic                                grpo       Succeeded                  200   0.98    rollout://tiny-adder",
        "broken                                    -          unreadable: the ledger i…  -     -       -",
    ]


def test_a_list_at_80_columns(shown):
    assert shown(80)[:4] == [
        "RUN                                       ALGORITHM  OUTCOME  STEP  REWARD  MODEL",
        "1ab3d04a2c174f6a89e1b2c3d4e5f607:train:0  service    stands…  1024  -       roll…",
        "arithmetic                                grpo       Succee…  200   0.98    roll…",
        "broken                                    -          unread…  -     -       -",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_every_row_is_one_line_and_begins_with_its_whole_id(shown, width):
    lines = shown(width)
    assert len(lines) == 1 + len(ROWS)
    assert [line.split()[0] for line in lines] == ["RUN", *(row[0] for row in ROWS)]


def test_nothing_is_cut_where_the_output_is_a_file(shown):
    assert "rollout://Qwen/Qwen2.5-0.5B-Instruct" in shown(80, terminal=False)[1]


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(1, 12)), min_size=1, max_size=8),
    st.integers(1, 300),
)
def test_columns_fit_or_are_at_their_least(columns, room):
    natural = [max(one) for one in columns]
    least = [min(one) for one in columns]
    widths = fit_columns(natural, least, room)
    assert widths[0] == natural[0]
    assert all(
        low <= one <= most
        for low, one, most in zip(least[1:], widths[1:], natural[1:], strict=True)
    )
    fits = sum(widths) + GAP * (len(widths) - 1) <= room
    assert fits or widths[1:] == least[1:]
