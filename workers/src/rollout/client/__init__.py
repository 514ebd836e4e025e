"""A client of `rollout serve --train` without anybody's SDK: `import rollout.client as tinker` in a program for `tinker`.

Classes, methods and types that are here have the names and shapes of that client; what the service does not offer is not here.
torch is imported by losses of your own and by `get_tokenizer`, and by nothing else.
"""

from rollout.client import types
from rollout.client.errors import BadCallError as BadRequestError
from rollout.client.errors import CallFailedError as RequestFailedError
from rollout.client.errors import KeyRefusedError as AuthenticationError
from rollout.client.errors import NothingThereError as NotFoundError
from rollout.client.errors import NotOfferedError as UnprocessableEntityError
from rollout.client.errors import RefusedError as APIStatusError
from rollout.client.errors import ServiceError as TinkerError
from rollout.client.errors import UnansweredError as APIConnectionError
from rollout.client.futures import ApiFuture as APIFuture
from rollout.client.rest.client import RestClient
from rollout.client.rest.told import ParsedCheckpointTinkerPath
from rollout.client.sampling import SamplingClient
from rollout.client.service import ServiceClient, connect
from rollout.client.training import TrainingClient
from rollout.client.types import (
    AdamParams,
    Datum,
    EncodedTextChunk,
    ForwardBackwardOutput,
    ModelInput,
    OptimStepResponse,
    SampledSequence,
    SampleResponse,
    SamplingParams,
    TensorData,
)

__all__ = [
    "APIConnectionError",
    "APIFuture",
    "APIStatusError",
    "AdamParams",
    "AuthenticationError",
    "BadRequestError",
    "Datum",
    "EncodedTextChunk",
    "ForwardBackwardOutput",
    "ModelInput",
    "NotFoundError",
    "OptimStepResponse",
    "ParsedCheckpointTinkerPath",
    "RequestFailedError",
    "RestClient",
    "SampleResponse",
    "SampledSequence",
    "SamplingClient",
    "SamplingParams",
    "ServiceClient",
    "TensorData",
    "TinkerError",
    "TrainingClient",
    "UnprocessableEntityError",
    "connect",
    "types",
]
