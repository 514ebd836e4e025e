"""Condition types: the aspects of an object's state, each with what it means and whether True is good."""

from enum import StrEnum
from typing import Literal, Self

Polarity = Literal["normal", "abnormal"]


class Explained(StrEnum):
    """A reason that carries its documentation: what it means, and what a person does."""

    meaning: str
    action: str

    def __new__(cls, value: str, meaning: str, action: str) -> Self:
        """One reason."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        member.action = action
        return member


class ConditionType(StrEnum):
    """One aspect of an object's state.

    ``normal``: True is good, always present. ``abnormal``: present, and True, only when something
    is going on.
    """

    polarity: Polarity
    meaning: str

    def __new__(cls, value: str, polarity: Polarity, meaning: str) -> Self:
        """A string that carries its documentation."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.polarity = polarity
        member.meaning = meaning
        return member

    READY = "Ready", "normal", "The object does its job, or has finished well."
    RECONCILING = "Reconciling", "abnormal", "The operator is working towards the spec."
    STALLED = "Stalled", "abnormal", "The operator cannot go on by itself."
    FINISHED = "Finished", "abnormal", "The work has ended, for good or ill; it stays so."
    COMPLETE = "Complete", "abnormal", "The work has ended well, as a Job's does; beside Finished."
    FAILED = "Failed", "abnormal", "The work has ended without its result; beside Finished."
    ADMITTED = "Admitted", "normal", "The queue has given the quota, or there is no queue."
    SUSPENDED = (
        "Suspended",
        "abnormal",
        "It is suspended and its pods are gone; of a sweep: those of all its runs.",
    )
    AVAILABLE = "Available", "normal", "Of an endpoint: a server of what serves answers requests."
    PROGRESSING = (
        "Progressing",
        "normal",
        "Of an endpoint: what the spec says serves, or comes up in time.",
    )
    SCALED = (
        "Scaled",
        "normal",
        "Of an endpoint: an autoscaler sets the number of its servers; shown with `spec.scaling`.",
    )
    ROUTED = (
        "Routed",
        "normal",
        "Of an endpoint: every Gateway of `spec.route` takes requests for it; shown with `spec.route`.",
    )
    FOLLOWING = (
        "Following",
        "normal",
        "Of an endpoint: its run is at work, and servers take what it saves; shown with `snapshot: Live`.",
    )
    ACTORS_READY = "ActorsReady", "normal", "Enough actors sample with verified weights."
    LEARNER_READY = "LearnerReady", "normal", "Every rank of the learner has joined."
    WEIGHTS_VERIFIED = (
        "WeightsVerified",
        "normal",
        "Every ready actor has proved the digest of the weights it loaded.",
    )
    LEARNING = "Learning", "normal", "Groups differ in reward, so the gradient is not zero."
    LOGPROBS_AGREE = (
        "LogprobsAgree",
        "normal",
        "Actors sample with the probabilities that the learner computes.",
    )
    TOKENS_ROUND_TRIP = (
        "TokensRoundTrip",
        "normal",
        "Texts of samples, encoded again, are the tokens that were sampled; shown when they are not.",
    )
    REWARD_HOLDS = (
        "RewardHolds",
        "normal",
        "Reward and selecting evaluation do not part; shown when they do.",
    )
    MEASURED = (
        "Measured",
        "normal",
        "Of a sweep: runs that are over have reported its objective; shown when one has not.",
    )
    TRACKING = "Tracking", "normal", "Every tracker takes the metrics that it is given."
    SNAPSHOTTED = "Snapshotted", "normal", "A durable snapshot exists that a restart would use."
    SNAPSHOTS_SCHEDULED = (
        "SnapshotsScheduled",
        "normal",
        "The snapshots that `spec.snapshots` asks for are made; shown where it asks for some.",
    )
    PURGED = (
        "Purged",
        "normal",
        "Of a snapshot that is being deleted with its bytes: they are gone; shown while they are not.",
    )
    SUPPORTED = "Supported", "normal", "Of a snapshot: images of processes can be made."
    CLEANED_UP = (
        "CleanedUp",
        "normal",
        "What a finished run no longer needs is gone; shown when it should be and is not.",
    )
    CLUSTER_WATCHED = (
        "ClusterWatched",
        "normal",
        "Lost nodes and missing StorageClasses are noticed; shown when they are not.",
    )
