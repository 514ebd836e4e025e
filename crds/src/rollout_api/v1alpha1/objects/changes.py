"""Which settings a living run keeps: the rules of update that the API server itself enforces.

A run attempt is rendered once, so a setting that its pods were made from may change only in a run that is to be
suspended: with the edit that suspends it, while it is suspended, or with the edit that resumes it. The rules look at
the spec alone, as a Job's do: what may be asked for does not depend on what has been done by now.
Live settings and immutable ones have no rule here.
"""

from collections.abc import Iterator

from rollout_api.base import ApiModel, Rule

_SUSPENDED = "(has(self.spec.suspend) && self.spec.suspend) || (has(oldSelf.spec.suspend) && oldSelf.spec.suspend)"
_REMEDY = "suspend the run, with the same edit or before it"


def settled_while_alive(
    parent: str, model: type[ApiModel], others: frozenset[str]
) -> Iterator[Rule]:
    """Rules of the run itself about the fields of ``spec.<parent>``, but for ``others`` (camelCase).

    One rule a field at the top, one rule for all fields of a parent: a refusal names the field, and
    the definition stays small enough for a client-side apply.
    """
    names = [str(field.alias) for field in model.model_fields.values()]
    kept = [name for name in names if name not in others]
    if not parent:
        for name in kept:
            yield _rule(f"({_same(f'spec.{name}')})", f"spec.{name}", f"{name} is settled")
        return
    place = f"spec.{parent}"
    same = " && ".join(f"({_same(f'{place}.{name}')})" for name in kept)
    rule = f"has(self.{place}) != has(oldSelf.{place}) || !has(self.{place}) || ({same})"
    free = ", ".join(sorted(set(names) & others))
    yield _rule(f"({rule})", place, f"all of {parent} but {free} is settled")


def _rule(same: str, place: str, what: str) -> Rule:
    return Rule(f"{same} || {_SUSPENDED}", f"{what} unless the run is suspended: {_REMEDY}", place)


def _same(place: str) -> str:
    return (
        f"has(self.{place}) == has(oldSelf.{place})"
        f" && (!has(self.{place}) || self.{place} == oldSelf.{place})"
    )
