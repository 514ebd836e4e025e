"""Workers share the files of this folder: real nodes are one worker's, a file stays together, long files begin first."""

from pathlib import Path

import pytest

import sharing


@pytest.fixture(scope="module")
def files() -> dict[str, Path]:
    return {path.stem: path for path in Path(__file__).parents[1].rglob("test_*.py")}


def test_every_long_file_is_there_and_has_no_real_nodes(files: dict[str, Path]):
    assert set(sharing.LONG) <= files.keys()
    assert not [name for name in sharing.LONG if "mark.real_nodes" in files[name].read_text()]


def test_no_two_files_have_one_name(files: dict[str, Path]):
    assert len(files) == len(list(Path(__file__).parents[1].rglob("test_*.py")))


def test_real_nodes_begin_first_then_long_files_then_the_others():
    groups = ["test_else", sharing.LONG[1], sharing.REAL, sharing.LONG[0]]
    assert sorted(groups, key=sharing.rank_of) == [
        sharing.REAL,
        *sharing.LONG[:2],
        "test_else",
    ]


def test_a_test_is_in_one_share_only(request: pytest.FixtureRequest):
    assert sharing.group_of(request.node) == "test_files_are_shared_by_what_they_need"
    (mark,) = request.node.iter_markers("xdist_group")
    assert mark.args == (sharing.group_of(request.node),)


def test_a_worker_among_several_schedules_by_share(request: pytest.FixtureRequest):
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("the tests run without --dist loadgroup")
    assert request.node.nodeid.endswith(f"@{sharing.group_of(request.node)}")
