"""A sampler of fixed weights: completions and logprobs. Its calls have no order among themselves, and no chain."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rollout.client.answers import SampleResponse
from rollout.client.data import ModelInput, SamplingSettings, TensorData
from rollout.client.futures import ApiFuture
from rollout.client.wire import parse_samples

if TYPE_CHECKING:
    from rollout.client.session import ClientSession


class SamplingClient:
    """One sampler; ``sampler_id`` is the service's. Futures raise ServiceError."""

    def __init__(self, session: ClientSession, sampler_id: str) -> None:
        self.sampler_id = sampler_id
        self._session = session
        self._connection = session.connection
        self._numbers = itertools.count()

    def sample(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingSettings,
        *,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_logprobs_last_n: int | None = None,
    ) -> ApiFuture[SampleResponse]:
        """Completions of a prompt, with logprobs under the distribution that they are drawn from.

        ``topk_...``: up to 128 likely tokens beside each; ``target_prompt_logprobs``: int64 [prompt - 1, K] ids to score in the
        prompt's places after the first, -1 for none; ``prompt_logprobs_last_n``: only so many of the prompt's, the last.
        """
        body = {
            "sampling_session_id": self.sampler_id,
            "seq_id": next(self._numbers),
            "prompt": _prompt(prompt),
            "num_samples": num_samples,
            "sampling_params": asdict(sampling_params),
            "prompt_logprobs": include_prompt_logprobs,
            "topk_prompt_logprobs": topk_prompt_logprobs,
            "topk_sample_logprobs": topk_sample_logprobs,
            "target_prompt_logprobs": _targets(target_prompt_logprobs),
            "prompt_logprobs_last_n": prompt_logprobs_last_n,
        }
        return ApiFuture(self._connection.run(self._sample(body)))

    def compute_logprobs(
        self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> ApiFuture[list[float | None]]:
        """The prompt's tokens, or the last of them, scored at temperature 1; all others, and the first, have None."""
        scored = self.sample(
            prompt,
            1,
            SamplingSettings(max_tokens=1),
            include_prompt_logprobs=True,
            prompt_logprobs_last_n=prompt_logprobs_last_n,
        )
        return ApiFuture(self._connection.run(_prompt_logprobs(scored)))

    def get_base_model(self) -> str:
        """The base's name. Raises ServiceError."""
        return self._connection.run(self._base()).result()

    async def sample_async(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingSettings,
        **more: Any,
    ) -> SampleResponse:
        """The completions themselves; ``more`` as in ``sample``."""
        return await self.sample(prompt, num_samples, sampling_params, **more)

    async def compute_logprobs_async(
        self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> list[float | None]:
        """The logprobs themselves."""
        return await self.compute_logprobs(prompt, prompt_logprobs_last_n)

    async def _sample(self, body: Mapping[str, Any]) -> SampleResponse:
        said = (await self._connection.post("asample", body)).json()
        reply = await self._connection.answer(said["request_id"])
        return parse_samples(reply.body, said["sample_sequence_ids"])

    async def _base(self) -> str:
        return (await self._connection.get(f"samplers/{self.sampler_id}")).json()["base_model"]


def _prompt(prompt: ModelInput) -> dict[str, Any]:
    return {"chunks": [{"type": "encoded_text", "tokens": prompt.to_ints()}]}


def _targets(ids: TensorData | None) -> dict[str, Any] | None:
    return None if ids is None else {"data": ids.data, "dtype": ids.dtype, "shape": ids.shape}


async def _prompt_logprobs(scored: ApiFuture[SampleResponse]) -> list[float | None]:
    return (await scored).prompt_logprobs or []
