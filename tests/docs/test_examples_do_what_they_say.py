"""The cheap commands of the how-tos are run; rewards score; what is shown as refused is refused."""

import pytest
from docs_kit import ROOT, blocks, commands, named_files, write_files
from warm import run_rollout

from rollout.types import Completion

HOW_TO = ROOT / "docs" / "how-to"
CHEAP = {"validate", "plan", "fmt", "schema"}
CHEAP_COMMANDS = [
    (page, words)
    for page, words in commands()
    if words[0] in CHEAP and words[-1] in named_files(page)
]


@pytest.mark.process
@pytest.mark.parametrize(("page", "words"), CHEAP_COMMANDS, ids=lambda value: str(value)[-50:])
def test_a_cheap_command_of_a_page_succeeds(page, words, tmp_path):
    done = run_rollout(*words, folder=write_files(page, tmp_path))

    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_broken_lines_are_told_as_the_page_shows(tmp_path):
    page = HOW_TO / "bring-your-own-data.md"
    folder = write_files(page, tmp_path)
    with (folder / "capitals.jsonl").open("a") as file:
        file.write('{"question": "What is the capital of Chad?", "answer": }\n')
        file.write('{"question": "", "answer": "Oslo"}\n{"prompt": "x"}\n')

    done = run_rollout("plan", "-f", "capitals.yaml", folder=folder)

    [shown] = [block.text for block in blocks("text") if block.page == page]
    assert done.returncode == 2
    assert done.stderr.replace(f"{folder}/", "") == shown
    skipping = run_rollout(
        "plan", "-f", "capitals.yaml", "--set", "train.data.onBadRecord=Skip", folder=folder
    )
    assert skipping.returncode == 0, skipping.stderr


@pytest.mark.process
def test_a_misspelt_field_is_told_as_the_tutorial_shows(tmp_path):
    page = ROOT / "docs" / "tutorial" / "first-run.md"
    folder = write_files(page, tmp_path)
    manifest = folder / "first.yaml"
    manifest.write_text(manifest.read_text().replace("groupSize", "groupsize"))

    done = run_rollout("validate", "-f", "first.yaml", folder=folder)

    assert done.returncode == 2
    assert any(done.stderr == block.text for block in blocks("text") if block.page == page), (
        done.stderr
    )


def answer(text: str) -> Completion:
    return Completion(token_ids=(1,), logprobs=(-0.1,), finish="stop", text=text)


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        (HOW_TO / "write-a-reward.md", {"digits": 0.5 * 2 / 3, "whole": 0.0}),
        (ROOT / "docs" / "tutorial" / "first-run.md", 2 / 3),
    ],
    ids=["how-to", "tutorial"],
)
def test_the_rewards_shown_score_digits_in_their_place(page, wanted):
    scope: dict = {}
    exec(named_files(page)["my_rewards.py"], scope)

    right, nearly = scope["digits_right"](
        [(), ()], [answer("147"), answer("047")], [{"answer": "147"}, {"answer": "147"}]
    )

    assert right in ({"digits": 0.5, "whole": 0.5}, 1.0)
    assert nearly == pytest.approx(wanted)


def test_the_reward_that_likes_brevity_does():
    scope: dict = {}
    exec(named_files(HOW_TO / "write-a-reward.md")["my_rewards.py"], scope)

    short, long = scope["brevity"]([(), ()], [answer("1"), answer("1" * 9)], [{}, {}])

    assert (short, long) == (0.5, 0.1)
