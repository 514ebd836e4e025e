"""A table of prices is read as if somebody else had written it: what is wrong is named with its field, and nothing is guessed."""

from __future__ import annotations

import pytest
from cost_kit import TABLE, table
from hypothesis import given
from hypothesis import strategies as st

from rollout.costs.prices import TABLE_BYTES_MAX, load_table, read_table
from rollout.errors import SpecError


def row(**fields):
    given = {"resource": "cpu", "from": "2026-01-01", "perHour": '"1"', **fields}
    inside = ", ".join(f"{name}: {value}" for name, value in given.items() if value is not None)
    return f"currency: EUR\nprices:\n  - {{{inside}}}\n"


@pytest.mark.parametrize(
    "money",
    ["-1", '"-1"', ".nan", ".inf", '"NaN"', '"1e3"', "0.5", "true", '""', '"1,50"', "[]", "~"],
)
def test_what_is_no_exact_amount_of_money_is_refused(money):
    with pytest.raises(SpecError, match=r"prices\[0\]\.perHour: .*quotes"):
        table(row(perHour=money))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (row().replace("EUR", "EURO"), "currency: expected a currency's code"),
        (row().replace("EUR", "XXX"), "currency: expected a currency's code"),
        ("prices: []", "currency: this field is required"),
        (row(machine="desk"), "exactly one of machine, instanceType, resource"),
        (row(resource=None), "exactly one of machine, instanceType, resource"),
        (row(**{"from": "2026-02-30"}), "p.yaml:3: not valid YAML"),
        (row(**{"from": "yesterday"}), r"prices\[0\]\.from"),
        (row(**{"from": "2026-01-01T10:00:00Z"}), r"prices\[0\]\.from: expected a day in UTC"),
        (row(**{"from": "17"}), r"prices\[0\]\.from: expected a day in UTC"),
        (row(**{"from": None}), r"prices\[0\]\.from: this field is required"),
        (row(capacity="Free"), r"prices\[0\]\.capacity"),
        (row(price="1"), r"prices\[0\]\.price: there is no field 'price' here"),
        (row(holds="{cpu: 1}"), "holds belongs to instanceType"),
        (row(resource=None, instanceType="a", holds='{cpu: "0"}'), "holds more than 0"),
        (row(resource=None, machine="a", capacity="Spot"), "capacity belongs to"),
        (TABLE + TABLE.split("prices:\n")[1], "has two prices from 2026-01-01: keep one"),
        ("- 1", "expected a table"),
        ("a: &a [1]\nb: *a", "is an alias"),
        ("{" * 100, "levels of nesting"),
        ("currency: !!python/object/apply:os.system [id]", "not valid YAML"),
    ],
)
def test_what_is_wrong_is_named(text, said):
    with pytest.raises(SpecError, match=said):
        load_table("p.yaml", text)


def test_no_more_of_a_file_is_read_than_a_table_may_have(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("#" * 10 * TABLE_BYTES_MAX)
    with pytest.raises(SpecError, match="more than 262144 bytes"):
        read_table(path)


def test_bytes_that_are_no_text_and_files_that_are_not_there_are_named(tmp_path):
    (tmp_path / "p.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match=r"p\.yaml: not UTF-8"):
        read_table(tmp_path / "p.yaml")
    with pytest.raises(SpecError, match=r"--prices .*none\.yaml: No such file"):
        read_table(tmp_path / "none.yaml")


@given(st.text(max_size=200))
def test_any_text_is_a_table_or_refused(text):
    try:
        load_table("p.yaml", text)
    except SpecError as error:
        assert str(error).startswith("p.yaml")
