"""What the report compares: lengths of samples by disposition, in every ledger."""

from ledger_kit import Clock, claim_request, consume, finished, started, step_commit

from rollout.ledger.records import Disposition, Limits


async def test_ended_samples_have_lengths_and_others_are_counted(
    open_ledger, read_ledger, tmp_path
):
    ledger = open_ledger(tmp_path, Clock(), Limits())
    learner, actor = await started(ledger, 3)
    leases = (await ledger.claim(claim_request("actor-0", actor))).leases
    await ledger.submit("actor-0", actor, [finished(lease) for lease in leases[:2]])
    ended = (
        *consume(range(1)),
        *(Disposition(task_id="t/1", sample=n, kind="filtered", reason="flat") for n in range(2)),
        *(Disposition(task_id="t/2", sample=n, kind="surplus", reason="late") for n in range(2)),
    )
    await ledger.commit(step_commit(1, range(3), learner, dispositions=ended))
    await ledger.close()

    with read_ledger(tmp_path) as reader:
        assert reader.lengths() == {
            "consumed": {2: 2},
            "filtered": {2: 2},
            "surplus": {None: 2},
        }
