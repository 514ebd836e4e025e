"""A model that is trained: calls in the order in which they are made here, each a future.

A call is sent when the one before it is acknowledged, and computed while others are on their way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rollout.client.answers import (
    ForwardBackwardOutput,
    GetInfoResponse,
    LoadWeightsResponse,
    ModelData,
    ModelStanding,
    OptimStepResponse,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
)
from rollout.client.connection import Reply
from rollout.client.custom import CustomLoss, as_weights, as_zero_weights, differentiate
from rollout.client.data import AdamParams, Datum
from rollout.client.errors import RefusedError, UnansweredError
from rollout.client.futures import ApiFuture, ClientFuture
from rollout.client.sampling import SamplingClient
from rollout.client.wire import build_loss_call, join_losses, parse_loss, plan_calls

if TYPE_CHECKING:
    from rollout.client.session import ClientSession

LossConfig = Mapping[str, float | str] | None


class TrainingClient:
    """One model. Every method that returns a future has a twin ``..._async``, which returns the same future.

    Answers have ``chain``. Raises TypeError, ValueError for what cannot be sent; futures raise ServiceError.
    """

    def __init__(self, session: ClientSession, model_id: str) -> None:
        self.model_id = model_id
        self._session = session
        self._connection = session.connection
        self._order = asyncio.Lock()
        self._num_taken = 0
        self._lost = ""

    def forward(
        self, data: Sequence[Datum], loss_fn: str, loss_fn_config: LossConfig = None
    ) -> ApiFuture[ForwardBackwardOutput]:
        """A loss without a gradient."""
        return self._start(self._loss(_messages(data, loss_fn, loss_fn_config, backward=False)))

    def forward_backward(
        self, data: Sequence[Datum], loss_fn: str, loss_fn_config: LossConfig = None
    ) -> ApiFuture[ForwardBackwardOutput]:
        """A loss, summed over all tokens, whose gradient is added to what the model has gathered."""
        return self._start(self._loss(_messages(data, loss_fn, loss_fn_config, backward=True)))

    def forward_backward_custom(
        self, data: Sequence[Datum], loss_fn: CustomLoss
    ) -> ApiFuture[ForwardBackwardOutput]:
        """Any loss: ``loss_fn(data, logprobs)`` has float32 tensors [N] and returns a scalar and metrics.

        It is computed here, with torch, in a thread of its own; calls after it wait for it.
        """
        scored = _messages(as_zero_weights(data), "cross_entropy", None, backward=False)
        return self._start(self._custom(data, scored, loss_fn))

    def optim_step(
        self, optim_params: AdamParams | None = None, *, adam_params: AdamParams | None = None
    ) -> ApiFuture[OptimStepResponse]:
        """A step of AdamW on the gathered gradient, which is then forgotten."""
        params = optim_params or adam_params or AdamParams()
        body = {"adam_params": asdict(params)}
        return self._start(self._read("optim_step", body, _stepped))

    def save_state(
        self, name: str, ttl_seconds: int | None = None, *, overwrite: bool = False
    ) -> ApiFuture[SaveWeightsResponse]:
        """Keep the adapter with its moments under a name, for models that begin from it."""
        body = {"path": name, "ttl_seconds": ttl_seconds, "overwrite": overwrite}
        return self._start(self._read("save_weights", body, _saved_state))

    def load_state(self, path: str) -> ApiFuture[LoadWeightsResponse]:
        """Go on from the adapter of a state; moments begin anew."""
        return self._load(path, optimizer=False)

    def load_state_with_optimizer(self, path: str) -> ApiFuture[LoadWeightsResponse]:
        """Go on from a state as it was."""
        return self._load(path, optimizer=True)

    def save_weights_for_sampler(
        self, name: str, ttl_seconds: int | None = None
    ) -> ApiFuture[SaveWeightsForSamplerResponse]:
        """Keep the weights under a name, to sample from."""
        body = {"path": name, "ttl_seconds": ttl_seconds}
        return self._start(self._read("save_weights_for_sampler", body, _saved_weights))

    def save_weights_and_get_sampling_client(self) -> ClientFuture[SamplingClient]:
        """A sampler of the weights as they are behind the calls so far."""
        return ClientFuture(self._connection.run(self._sampler()))

    def create_sampling_client(self, model_path: str) -> ClientFuture[SamplingClient]:
        """A sampler of saved weights."""
        return ClientFuture(self._connection.run(self._session.sampler(model_path=model_path)))

    def get_info(self) -> GetInfoResponse:
        """The model as the service describes it. Raises ServiceError."""
        return self._connection.run(self._info()).result()

    def get_standing(self) -> ModelStanding:
        """Calls that are answered, and the chain behind them: to compare with another's. Raises ServiceError."""
        return self._connection.run(self._standing()).result()

    def get_tokenizer(self) -> Any:
        """The base's tokenizer, through transformers, from its folder: for a service on this machine."""
        return self._session.tokenizer(self.get_info().model_data.tokenizer_id)

    async def forward_async(
        self, data: Sequence[Datum], loss_fn: str, loss_fn_config: LossConfig = None
    ) -> ApiFuture[ForwardBackwardOutput]:
        """``forward``."""
        return self.forward(data, loss_fn, loss_fn_config)

    async def forward_backward_async(
        self, data: Sequence[Datum], loss_fn: str, loss_fn_config: LossConfig = None
    ) -> ApiFuture[ForwardBackwardOutput]:
        """``forward_backward``."""
        return self.forward_backward(data, loss_fn, loss_fn_config)

    async def forward_backward_custom_async(
        self, data: Sequence[Datum], loss_fn: CustomLoss
    ) -> ApiFuture[ForwardBackwardOutput]:
        """``forward_backward_custom``."""
        return self.forward_backward_custom(data, loss_fn)

    async def optim_step_async(
        self, optim_params: AdamParams | None = None, *, adam_params: AdamParams | None = None
    ) -> ApiFuture[OptimStepResponse]:
        """``optim_step``."""
        return self.optim_step(optim_params, adam_params=adam_params)

    async def save_state_async(
        self, name: str, ttl_seconds: int | None = None, *, overwrite: bool = False
    ) -> ApiFuture[SaveWeightsResponse]:
        """``save_state``."""
        return self.save_state(name, ttl_seconds, overwrite=overwrite)

    async def load_state_async(self, path: str) -> ApiFuture[LoadWeightsResponse]:
        """``load_state``."""
        return self.load_state(path)

    async def load_state_with_optimizer_async(self, path: str) -> ApiFuture[LoadWeightsResponse]:
        """``load_state_with_optimizer``."""
        return self.load_state_with_optimizer(path)

    async def save_weights_for_sampler_async(
        self, name: str, ttl_seconds: int | None = None
    ) -> ApiFuture[SaveWeightsForSamplerResponse]:
        """``save_weights_for_sampler``."""
        return self.save_weights_for_sampler(name, ttl_seconds)

    async def save_weights_and_get_sampling_client_async(self) -> SamplingClient:
        """The sampler itself."""
        return await self.save_weights_and_get_sampling_client()

    async def create_sampling_client_async(self, model_path: str) -> SamplingClient:
        """The sampler itself."""
        return await self.create_sampling_client(model_path)

    async def get_info_async(self) -> GetInfoResponse:
        """``get_info`` for coroutines."""
        return await ApiFuture(self._connection.run(self._info()))

    def _start(self, work: Coroutine[Any, Any, Any]) -> ApiFuture[Any]:
        return ApiFuture(self._connection.run(work))

    def _load(self, path: str, *, optimizer: bool) -> ApiFuture[LoadWeightsResponse]:
        body = {"path": path, "optimizer": optimizer}
        return self._start(self._read("load_weights", body, lambda reply: _loaded(reply, path)))

    async def _submit(self, path: str, build: Callable[[int], Any]) -> str:
        """Send the next call; in the order's turn. A refused request has not used its number up."""
        if self._lost:
            raise UnansweredError(self._lost)
        seq = self._num_taken + 1
        try:
            said = await self._connection.post(path, build(seq))
        except RefusedError:
            raise
        except BaseException:
            self._lost = (
                f"call {seq} of model {self.model_id} was not acknowledged: whether the service has it is not"
                " known. Begin from a saved state: create_training_client_from_state_with_optimizer"
            )
            raise
        self._num_taken = seq
        return said.json()["request_id"]

    async def _in_order(self, path: str, body: Mapping[str, Any]) -> Reply:
        async with self._order:
            request = await self._submit(
                path, lambda seq: {"model_id": self.model_id, "seq_id": seq, **body}
            )
        return await self._connection.answer(request)

    async def _read(self, path: str, body: Mapping[str, Any], read: Callable[[Reply], Any]) -> Any:
        return read(await self._in_order(path, body))

    async def _send_losses(self, messages: Sequence[Any]) -> list[str]:
        return [
            await self._submit("forward_backward", lambda seq, m=one: self._placed(m, seq))
            for one in messages
        ]

    def _placed(self, message: Any, seq: int) -> bytes:
        message.model_id, message.seq_id = self.model_id, seq
        return message.SerializeToString()

    async def _loss(self, messages: Sequence[Any]) -> ForwardBackwardOutput:
        async with self._order:
            requests = await self._send_losses(messages)
        return await self._gather(requests)

    async def _gather(self, requests: Sequence[str]) -> ForwardBackwardOutput:
        replies = [await self._connection.answer(one) for one in requests]
        return join_losses([parse_loss(one.body, one.chain) for one in replies])

    async def _custom(
        self, data: Sequence[Datum], scored: Sequence[Any], loss_fn: CustomLoss
    ) -> ForwardBackwardOutput:
        async with self._order:
            forward = await self._gather(await self._send_losses(scored))
            logprobs = [out["logprobs"] for out in forward.loss_fn_outputs]
            gradients, metrics = await asyncio.to_thread(differentiate, data, logprobs, loss_fn)
            weighted = _messages(as_weights(data, gradients), "cross_entropy", None, backward=True)
            requests = await self._send_losses(weighted)
        backward = await self._gather(requests)
        return ForwardBackwardOutput(
            loss_fn_outputs=backward.loss_fn_outputs,
            metrics={**backward.metrics, **metrics},
            loss_fn_output_type=backward.loss_fn_output_type,
            chain=backward.chain,
        )

    async def _sampler(self) -> SamplingClient:
        body = {"sampling_session_seq_id": self._session.next_sampler()}
        reply = await self._in_order("save_weights_for_sampler", body)
        return SamplingClient(self._session, reply.json()["sampling_session_id"])

    async def _info(self) -> GetInfoResponse:
        said = (await self._connection.post("get_info", {"model_id": self.model_id})).json()
        data = said["model_data"]
        return GetInfoResponse(
            model_id=said["model_id"],
            model_name=said["model_name"],
            is_lora=said["is_lora"],
            lora_rank=said["lora_rank"],
            model_data=ModelData(model_name=data["model_name"], tokenizer_id=data["tokenizer_id"]),
        )

    async def _standing(self) -> ModelStanding:
        said = (await self._connection.get(f"rollout/models/{self.model_id}")).json()
        return ModelStanding(model_id=said["model_id"], calls=said["calls"], chain=said["chain"])


def _messages(data: Sequence[Datum], loss: str, config: LossConfig, *, backward: bool) -> list[Any]:
    return [build_loss_call(part, loss, config, backward=backward) for part in plan_calls(data)]


def _stepped(reply: Reply) -> OptimStepResponse:
    return OptimStepResponse(metrics=reply.json()["metrics"], chain=reply.chain)


def _saved_state(reply: Reply) -> SaveWeightsResponse:
    return SaveWeightsResponse(path=reply.json()["path"], chain=reply.chain)


def _saved_weights(reply: Reply) -> SaveWeightsForSamplerResponse:
    said = reply.json()
    return SaveWeightsForSamplerResponse(
        path=said["path"], digest=said.get("digest", ""), chain=reply.chain
    )


def _loaded(reply: Reply, path: str) -> LoadWeightsResponse:
    return LoadWeightsResponse(path=reply.json().get("path") or path, chain=reply.chain)
