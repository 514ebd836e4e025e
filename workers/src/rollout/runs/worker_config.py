"""From a spec and what a look at model and data has found to what every worker is told. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rollout.models.roles import further_models
from rollout.runs.identity import IDENTITY_FORMAT, grade_of, spec_digest
from rollout.runs.prepare import PreparedRun
from rollout.runs.resolve import Resolution
from rollout_api.v1alpha1.common import Dtype
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.worker import ResolvedRun, RoutedExperts, WorkerConfig, WorkerOrder


def choose_dtype(spec: RolloutRunSpec, *, accelerated: bool) -> Dtype:
    """Number format of the policy: as asked for, else what the devices are good at."""
    return spec.model.dtype or ("BFloat16" if accelerated else "Float32")


def with_dtype(spec: RolloutRunSpec, dtype: Dtype) -> RolloutRunSpec:
    """The same run in this number format."""
    return spec.model_copy(update={"model": spec.model.model_copy(update={"dtype": dtype})})


def complete(order: WorkerOrder, found: Resolution, dtype: Dtype) -> WorkerConfig:
    """The configuration of every process of a run."""
    spec = order.spec
    digest = spec_digest(
        spec,
        model_digest=found.model_digest,
        data_digests=found.data_digests,
        dtype=dtype,
        further_digests=found.model_digests,
        tool_digests=found.tool_digests,
        plugin_digests=found.plugin_digests,
    )
    given = {name: getattr(order, name) for name in WorkerOrder.model_fields}
    return WorkerConfig(
        **given,
        spec_digest=digest,
        identity_format=IDENTITY_FORMAT,
        resolved=_resolved(spec, found, dtype),
    )


def _resolved(spec: RolloutRunSpec, found: Resolution, dtype: Dtype) -> ResolvedRun:
    return ResolvedRun(
        model_path=found.model_path,
        model_digest=found.model_digest,
        dtype=dtype,
        stop_token_ids=found.stop_token_ids,
        pad_token_id=found.pad_token_id,
        prompt_tokens_max=found.prompt_tokens_max,
        models=found.models,
        model_digests=found.model_digests,
        data_digests=found.data_digests,
        tool_digests=found.tool_digests,
        plugin_digests=found.plugin_digests,
        bad_records=found.num_bad,
        left_out=found.left_out,
        experts=_experts(found),
        engine=spec.actors.chosen_engine.name,
        grade=grade_of(spec),
    )


def _experts(found: Resolution) -> RoutedExperts | None:
    return None if found.experts is None else RoutedExperts(**msgspec.structs.asdict(found.experts))


def contents_of(config: WorkerConfig) -> dict[str, str | None]:
    """Digests of models and data by the field that names them, as a run began with them."""
    resolved = config.resolved
    further = {
        one.field: resolved.model_digests[one.role]
        for one in further_models(config.spec)
        if one.role in resolved.model_digests
    }
    data = _data_digests(config.spec, resolved.data_digests)
    tools = _brought(resolved.tool_digests, resolved.plugin_digests)
    return {"spec.model": resolved.model_digest, **further, **data, **tools}


def found_contents(prepared: PreparedRun, found: Resolution) -> dict[str, str | None]:
    """As they are now."""
    further = {one.field: found.model_digests[one.role] for one in further_models(prepared.spec)}
    data = _data_digests(prepared.spec, found.data_digests)
    tools = _brought(found.tool_digests, found.plugin_digests)
    return {"spec.model": found.model_digest, **further, **data, **tools}


def _brought(tools: Mapping[str, str], plugins: Mapping[str, str]) -> dict[str, str | None]:
    named = {f"tool {name}": digest for name, digest in tools.items()}
    return {**named, **{f"plugin {path}": digest for path, digest in plugins.items()}}


def _data_digests(spec: RolloutRunSpec, found: Mapping[str, str]) -> dict[str, str | None]:
    if spec.evaluate is not None:
        return {f"evaluation {name}": digest for name, digest in found.items()}
    return {f"spec.{spec.chosen}.data": found.get(spec.chosen)}
