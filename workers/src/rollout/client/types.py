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
)
from rollout.client.data import AdamParams, Datum, EncodedTextChunk, ModelInput, TensorData
from rollout.client.data import SamplingSettings as SamplingParams

__all__ = [
    "AdamParams",
    "Datum",
    "EncodedTextChunk",
    "ForwardBackwardOutput",
    "GetInfoResponse",
    "GetServerCapabilitiesResponse",
    "LoadWeightsResponse",
    "ModelData",
    "ModelInput",
    "OptimStepResponse",
    "SampleResponse",
    "SampledSequence",
    "SamplingParams",
    "SaveWeightsForSamplerResponse",
    "SaveWeightsResponse",
    "SupportedModel",
    "TensorData",
]
