"""Lines and JSON that say where a model comes from, the same for an export and for a look at one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout.cli.outcomes import print_fact

if TYPE_CHECKING:
    from rollout.runs.export.lineage import Lineage


def print_lineage(lineage: Lineage) -> None:
    """A line each: what it was made of, by whom, and the digests."""
    revision = f" at {lineage.base.revision}" if lineage.base.revision else ""
    kind = ", a reward model" if lineage.scores else ""
    numbers = f"{lineage.num_parameters:,} parameters in {lineage.dtype}"
    print_fact("weights", f"{lineage.form}{kind}, {numbers}")
    print_fact("made by", f"{lineage.run}, step {lineage.step} of {lineage.algorithm}")
    print_fact("from", f"{lineage.base.uri}{revision}")
    print_fact("trained on", lineage.source)
    print_fact("grade", lineage.grade)
    for one in lineage.evaluations:
        value = f"{one.value:.4g} [{one.low:.4g}, {one.high:.4g}]"
        print_fact(f"{one.name} {one.split}", f"{one.metric} {value}")
    print_fact("digest", lineage.weights)
    print_fact("hash chain", lineage.chain or "unknown")


def lineage_json(lineage: Lineage) -> dict[str, Any]:
    """All of it but the digests of single tensors, which the folder's file has."""
    import msgspec

    return {
        name: value for name, value in msgspec.to_builtins(lineage).items() if name != "tensors"
    }
