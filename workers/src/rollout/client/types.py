"""The types by the names that programs for the `tinker` client know them by."""

from rollout.client.answers import DrawnSequence as SampledSequence
from rollout.client.answers import (
    ForwardBackwardOutput,
    GetInfoResponse,
    GetServerCapabilitiesResponse,
    LoadWeightsResponse,
    ModelData,
    OptimStepResponse,
    SampleResponse,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
    SupportedModel,
    TopkLogprobs,
)
from rollout.client.data import AdamParams, Datum, EncodedTextChunk, ModelInput, TensorData
from rollout.client.data import SamplingSettings as SamplingParams
from rollout.client.rest.told import (
    Checkpoint,
    CheckpointsListResponse,
    GetSamplerResponse,
    GetSessionResponse,
    ListSessionsResponse,
    ParsedCheckpointTinkerPath,
    TrainingRun,
    TrainingRunsResponse,
    WeightsInfoResponse,
)
from rollout.client.rest.told import ListPart as Cursor

__all__ = [
    "AdamParams",
    "Checkpoint",
    "CheckpointsListResponse",
    "Cursor",
    "Datum",
    "EncodedTextChunk",
    "ForwardBackwardOutput",
    "GetInfoResponse",
    "GetSamplerResponse",
    "GetServerCapabilitiesResponse",
    "GetSessionResponse",
    "ListSessionsResponse",
    "LoadWeightsResponse",
    "ModelData",
    "ModelInput",
    "OptimStepResponse",
    "ParsedCheckpointTinkerPath",
    "SampleResponse",
    "SampledSequence",
    "SamplingParams",
    "SaveWeightsForSamplerResponse",
    "SaveWeightsResponse",
    "SupportedModel",
    "TensorData",
    "TopkLogprobs",
    "TrainingRun",
    "TrainingRunsResponse",
    "WeightsInfoResponse",
]
