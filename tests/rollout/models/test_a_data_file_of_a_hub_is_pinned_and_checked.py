"""``hf://`` data files through the real client from a hub of our own: of one commit, right or refused, gone on with."""

import hashlib

import pytest
from hub_kit import asker, data_repo, rows
from hub_server import open_hub

pytestmark = pytest.mark.process

NAME = "datasets/acme/rows"
FILE = "rows/train.jsonl"


def test_a_data_file_is_that_of_its_revision(tmp_path):
    with open_hub({NAME: data_repo()}) as hub, asker(hub.address, tmp_path / "home") as one:
        found = {
            at: one.fetch(f"hf://{NAME}{at}/{FILE}") for at in ("", "@v1", "@refs%2Fconvert%2Fx")
        }
        pins = [one.fetch("pin acme/rows", revision)["commit"] for revision in (None, "v1", "v9")]
        gone = one.fetch("pin acme/other")["commit"]

    texts = {at: said.get("text", said).encode() for at, said in found.items()}
    assert texts == {"": rows(2), "@v1": rows(1), "@refs%2Fconvert%2Fx": rows(1)}
    assert pins == [f"{2:040x}", f"{1:040x}", "v9"] and gone is None


@pytest.mark.parametrize(
    ("wrong", "at", "file", "says"),
    [
        (
            {},
            "@v9",
            FILE,
            "at revision v9: the repository has no such revision; there are main, v1",
        ),
        ({}, "@", FILE, "expected a commit, tag or branch after the @"),
        ({}, "", "", "expected hf://datasets/owner/name/file.jsonl"),
        ({}, "", "no.jsonl", "a file is not there"),
        ({"gate": 401}, "", FILE, "is gated: accept its terms at http"),
    ],
)
def test_a_data_file_that_is_not_to_be_had_is_told_with_the_fix(tmp_path, wrong, at, file, says):
    with open_hub({NAME: data_repo(**wrong)}) as hub, asker(hub.address, tmp_path / "home") as one:
        said = one.fetch(f"hf://{NAME}{at}/{file}")

    assert said["kind"] == "DataNotFound"
    assert says in said["words"] and f"hf://{NAME}" in said["words"]


def test_a_data_file_goes_on_where_it_broke_off_and_other_bytes_are_not_kept(tmp_path):
    repo = data_repo(store_gone=True)
    with open_hub({NAME: repo}) as hub, asker(hub.address, tmp_path / "home") as one:
        broken = one.fetch(f"hf://{NAME}/{FILE}")
        digest = hashlib.sha256(rows(2)).hexdigest()
        blobs = one.cache / "datasets--acme--rows" / "blobs"
        kept = (blobs / f"{digest}.partial").stat().st_size
        repo.heal()
        repo.spoilt[FILE] = 2
        spoilt = one.fetch(f"hf://{NAME}/{FILE}")
        repo.heal()
        said = one.fetch(f"hf://{NAME}/{FILE}")

    assert broken["kind"] == "HubUnreachable" and 0 < kept < len(rows(2))
    assert spoilt.get("kind") is None or "nothing of them is kept" in spoilt["words"]
    assert said["text"].encode() == rows(2)


@pytest.mark.parametrize(
    ("wrong", "revision", "says"),
    [
        ({"gate": 401}, None, "is gated: accept its terms at http"),
        ({"gate": 403}, None, "is gated: accept its terms at http"),
        ({}, "v9", "there are main, v1"),
    ],
)
def test_a_data_set_that_is_not_to_be_had_is_told_with_the_fix(tmp_path, wrong, revision, says):
    with open_hub({NAME: data_repo(**wrong)}) as hub, asker(hub.address, tmp_path / "home") as one:
        said = one.fetch("load acme/rows", revision)

    assert said["kind"] == "DataNotFound"
    assert says in said["words"] and "hf://datasets/acme/rows" in said["words"]
