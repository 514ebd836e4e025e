"""Data that is a plugin which raises, hangs, floods, dies or lies: it is named before anything is trained on what it gave."""

import pytest
from plugin_kit import write

from rollout.coordinator.rows import build_rows, open_sources
from rollout.data.build import build_source
from rollout.errors import DataError, DataNotFound, SpecError
from rollout.plugins.sidecar import client
from rollout.plugins.sidecar.conformance import checks
from rollout.plugins.sidecar.conformance.running import check_plugin
from rollout.plugins.sidecar.kinds import suite
from rollout_api.v1alpha1.data import Data
from rollout_api.worker import WorkerConfig

pytestmark = pytest.mark.process
DIGEST = "blake3:" + "0" * 64
NAMED = "plugin tried 1.0.0, rows of train: "
DATA = {"plugin": {"path": "rows"}}


def opened(place):
    return build_source(Data.model_validate(DATA), folders=[place])


def refusal(place):
    with pytest.raises((DataError, SpecError)) as refused:
        opened(place)
    return str(refused.value)


RAISED = {
    "none": ("serve(data=lambda split: [])", "rows of train has no usable record: it is empty"),
    "raises": (
        "def rows(split):\n    raise KeyError(split)\nserve(data=rows)",
        f"{NAMED}KeyError: 'train'",
    ),
    "lists": ("serve(data=lambda split: [[1]])", NAMED),
    "no number": (
        "serve(data=lambda split: [{'prompt': 'a', 'n': [float('nan')]}])",
        "row 0: n.0: nan is not a finite number",
    ),
    "half a character": ("serve(data=lambda split: [{'prompt': '\\ud800'}])", "plugin tried 1.0.0"),
}


@pytest.mark.parametrize("name", RAISED)
def test_what_gives_no_rows_is_named(name, tmp_path):
    body, why = RAISED[name]
    write(tmp_path / "rows", body, kind="data")

    assert why in refusal(tmp_path)


def test_rows_that_nest_deeper_than_a_run_reads_are_named_when_they_are_opened(tmp_path):
    body = """
        deep = {}
        for _ in range(40):
            deep = {"in": deep}
        serve(data=lambda split: [{"prompt": "a"}, {"prompt": "b", "more": deep}])
    """
    write(tmp_path / "rows", body, kind="data")
    said = refusal(tmp_path)

    assert "1 of 2 records cannot be used" in said
    assert "row 1: more.in" in said
    assert "nested more than 32 deep" in said


def test_one_that_hangs_is_given_up_by_name_and_leaves_no_process(tmp_path, monkeypatch):
    body = "import threading\nserve(data=lambda split: threading.Event().wait())"
    write(tmp_path / "rows", body, kind="data")
    monkeypatch.setattr(suite, "PAGE_SECONDS", 0.5)
    seen = []
    monkeypatch.setattr(suite, "PluginClient", lambda *given: seen.append(_seen(*given)) or seen[0])

    said = refusal(tmp_path)
    assert said.startswith(NAMED)
    assert "DEADLINE_EXCEEDED" in said
    assert seen[0].pid is None


_seen = client.PluginClient


def test_rows_without_an_end_fill_no_memory(tmp_path):
    body = """
        import itertools
        import rollout.plugins.served.rows as served
        served.BYTES_MAX = 1 << 20
        serve(data=lambda split: ({"prompt": "x" * 1000} for _ in itertools.count()))
    """
    write(tmp_path / "rows", body, kind="data")

    assert f"{NAMED}ValueError: more than 1000000 rows" in refusal(tmp_path)


def test_rows_that_do_not_come_to_an_end_in_time_are_given_up(tmp_path, monkeypatch):
    write(tmp_path / "rows", "serve(data=lambda split: [{'prompt': 'a'}])", kind="data")
    monkeypatch.setattr(suite, "ROWS_SECONDS", 0.0)

    assert f"{NAMED}it gave 0 rows in 0 s, and not all" in refusal(tmp_path)


def answering(folder, said):
    """A plugin that is not ours, and answers so when it is asked for rows."""
    return write(
        folder,
        f"""
        import os, pathlib
        import rollout.plugins.serving as s
        class Liar(s.DataService):
            async def _give(self, request):
                return s.contract.RowsResponse({said})
        s._SERVICES = {{"data": Liar}}
        serve(data=len)
        """,
        kind="data",
    )


ENDLESS = "rows_json=['{}'], total=request.start + 2"
LIES = {
    "no end": (ENDLESS, "it has 3 rows, and had 2 before"),
    "more than it says": ("rows_json=['{}', '{}', '{}'], total=2", "more rows than the 2"),
    "rows behind its last": ("rows_json=['{}'], total=1", "more rows than the 1"),
    "fewer than it says": (
        "rows_json=['{}'] if not request.start else [], total=2",
        "1 of its 2 rows, and then none",
    ),
    "no JSON": ("rows_json=['{'], total=1", "row 0 is no JSON"),
    "no object": ("rows_json=['{}', '[1]'], total=2", "row 1: expected a JSON object"),
    "a page of 10 GB": ("rows_json=['x' * (1 << 17)], total=10 ** 6", "RESOURCE_EXHAUSTED"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_plugin_that_lies_about_its_rows_is_named(name, tmp_path, monkeypatch):
    said, why = LIES[name]
    answering(tmp_path / "rows", said)
    monkeypatch.setattr(client, "CHANNEL", [("grpc.max_receive_message_length", 1 << 16)])
    refused = refusal(tmp_path)

    assert refused.startswith(NAMED)
    assert why in refused


def test_its_test_finds_rows_that_are_others_when_asked_from_another_place(tmp_path, monkeypatch):
    said = "rows_json=['{\"n\": %d}' % n for n in range(2 - request.start)], total=2"
    folder = answering(tmp_path / "rows", said)
    monkeypatch.setattr(checks, "COMMON", ())
    failed = {one.name: one.why for one in check_plugin(folder, {}) if not one.has_passed}

    assert set(failed) == {"gives rows from anywhere"}
    assert "the rows from 1 on are others" in failed["gives rows from anywhere"]


DYING = """
    import os, pathlib
    import rollout.plugins.served.rows as served
    import rollout.plugins.serving as s
    served.PAGE_ROWS = 2
    class Dying(s.DataService):
        async def _give(self, request):
            mark = pathlib.Path("MARK")
            if request.start >= 2 and WHEN:
                mark.touch()
                print("the disk is gone", flush=True)
                os._exit(3)
            return await super()._give(request)
    s._SERVICES = {"data": Dying}
    serve(data=lambda split: [{"prompt": str(n)} for n in range(5)])
"""


def dying(tmp_path, when):
    body = DYING.replace("WHEN", when).replace("MARK", str(tmp_path / "mark"))
    return write(tmp_path / "rows", body, kind="data")


def test_one_that_dies_in_the_middle_is_asked_again_from_the_beginning(tmp_path):
    dying(tmp_path, "not mark.exists()")

    assert [one["prompt"] for one in opened(tmp_path).rows(range(5))] == list("01234")
    assert (tmp_path / "mark").exists()


def test_one_that_dies_each_time_is_given_up_with_what_it_said(tmp_path):
    dying(tmp_path, "True")
    said = refusal(tmp_path)

    assert "plugin tried 1.0.0" in said
    assert "the disk is gone" in said


OTHERS = """
    import os
    serve(data=lambda split: [{"prompt": f"{os.getpid()} {n}", "answer": "a"} for n in range(40)])
"""


def config(place, train, planned, **spec):
    return WorkerConfig.model_validate(
        {
            "run": {"name": "r", "uid": "u"},
            "specDigest": DIGEST,
            "spec": {
                "model": {"uri": "rollout://tiny-adder"},
                "code": {"path": str(place)},
                "train": {
                    "algorithm": {"sft": {"batchSize": 2}},
                    "data": DATA,
                    "maxSteps": 1,
                    **train,
                },
                **spec,
            },
            "resolved": {
                "modelPath": str(place),
                "modelDigest": DIGEST,
                "dtype": "Float32",
                "promptTokensMax": 16,
                "dataDigests": planned,
            },
            "layout": {
                "runDir": str(place / "run"),
                "coordinatorUrl": "http://127.0.0.1:1",
                "tokenFile": str(place / "token"),
                "objectsDir": str(place / "objects"),
                "ledgerPath": str(place / "ledger.db"),
            },
        }
    )


def test_other_rows_than_the_run_was_planned_with_are_not_trained_on(tmp_path):
    write(tmp_path / "rows", OTHERS, kind="data")
    planned = {"train": opened(tmp_path).digest}

    with pytest.raises(DataNotFound, match=r"train\.data \(plugin rows\) is .*: the data changed"):
        build_rows(config(tmp_path, {}, planned))


def test_other_rows_than_the_run_was_planned_with_measure_nothing(tmp_path):
    write(tmp_path / "rows", OTHERS, kind="data")
    train = {
        "algorithm": {"grpo": {}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "data": None,
    }
    rewards = [{"builtin": {"name": "exact-match"}}]
    suites = [{"name": "asked", "suite": {"data": DATA, "rewards": rewards}}]
    spec = config(tmp_path, {**train, "rewards": rewards}, {"asked": DIGEST}, evaluations=suites)

    with pytest.raises(DataNotFound, match=r"rows of evaluation asked are .*: the data changed"):
        build_rows(spec)


def test_what_is_trained_on_and_what_is_held_out_come_from_the_same_rows(tmp_path):
    write(tmp_path / "rows", OTHERS, kind="data")
    held = {"data": {**DATA, "evalFraction": "0.5"}, "heldOut": {}}

    with pytest.raises(DataNotFound, match=r"\(plugin rows\) was .*the same rows each time"):
        open_sources(config(tmp_path, held, {}))
