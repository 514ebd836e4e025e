"""What a page shows of an output is held against it: dots stand for what is left out, and for nothing else."""

import pytest
from followed_pages import is_as_shown

TABLE = "NAME  AGE\none   3m\ntwo   long\n      words\n"


@pytest.mark.parametrize(
    "shown",
    [
        TABLE,
        "NAME AGE\none ...\ntwo long words\n",
        "NAME  AGE\n...\n",
        "...\ntwo long ...\n",
        "NAME  AGE\n...\none   3m\ntwo l...g words\n",
        "...\nNAME  AGE\n...\none ... words\n...\n",
    ],
)
def test_dots_stand_for_anything_and_for_no_line_at_all(shown):
    assert is_as_shown(shown, TABLE)


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "NAME  AGE\n",
        "...\none   4m\n...\n",
        "NAME  AGE\ntwo ...\none ...\n",
        "NAME. AGE\n...\n",
        "...\ntwo long\n",
    ],
)
def test_what_is_shown_and_not_printed_or_printed_and_not_shown_is_found(shown):
    assert not is_as_shown(shown, TABLE)
