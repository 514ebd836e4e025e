"""Condition types and the closed list of reasons, each with what it means and what a person does.

``docs/reference/conditions.md`` is generated from this file.
"""

from rollout_api.condition_types import ConditionType, Explained

__all__ = ["ConditionType", "Reason"]


class Reason(Explained):
    """Why a condition is as it is."""

    # The normal course
    PENDING = "Pending", "Nothing has been decided yet.", "Wait a moment."
    QUEUED = (
        "Queued",
        "The queue has not given the quota yet.",
        "Wait, or look at the queue: `kubectl get workloads`.",
    )
    QUOTA_RESERVED = "QuotaReserved", "The queue has given the quota.", "Nothing."
    NO_QUEUE = "NoQueue", "The run names no queue and needs none.", "Nothing."
    WAITING_FOR_RUN = (
        "WaitingForRun",
        "The run named in `fromRun` has not finished well yet.",
        "Wait, or look at that run.",
    )
    WAITING_FOR_SNAPSHOT = (
        "WaitingForSnapshot",
        "The snapshot named in `restoreFrom` is not durable yet, or will never be.",
        "Wait, or look at that RolloutSnapshot; one that has failed is made again under another name.",
    )
    SAVING = "Saving", "The parts of a snapshot are being made durable.", "Wait."
    STARTING = "Starting", "Children are being created or are loading.", "Wait."
    VALID = "Valid", "Of a runtime: its spec can be read, and runs may use it.", "Nothing."
    RUNNING = "Running", "The work goes on.", "Nothing."
    SERVING = "Serving", "A server of the endpoint answers requests.", "Nothing."
    NO_SERVER_READY = (
        "NoServerReady",
        "No server of what serves answers.",
        "Look at the pods of the Deployment that the message names: events, and the log of `server`.",
    )
    SCALED_TO_ZERO = "ScaledToZero", "`spec.replicas` is 0: nobody answers.", "Scale it up."
    AUTOSCALED = "Autoscaled", "The autoscaler sets the number of servers.", "Nothing."
    AUTOSCALER_FAILED = (
        "AutoscalerFailed",
        "The autoscaler of `spec.scaling` cannot tell how many servers there should be: they stay as many as they are.",
        "Look at what the message says; most often its metric is not there.",
    )
    ROUTE_ACCEPTED = "RouteAccepted", "Every Gateway has taken the route.", "Nothing."
    ROUTE_NOT_ACCEPTED = (
        "RouteNotAccepted",
        "A Gateway of `spec.route` is not there, refuses the route, or has not answered yet.",
        "Look at what the message says, and at the Gateway's listeners: `allowedRoutes`, `hostname`.",
    )
    KIND_NOT_SERVED = (
        "KindNotServed",
        "The spec asks for an object of a kind that the cluster does not have: KEDA's ScaledObject, or HTTPRoute.",
        "Install KEDA or the Gateway API, or take the field away; the operator looks again within a minute.",
    )
    REVISION_CREATED = "RevisionCreated", "Servers of a changed endpoint come up.", "Wait."
    REVISION_SERVES = "RevisionServes", "What the spec says is what serves.", "Nothing."
    PROGRESS_DEADLINE_EXCEEDED = (
        "ProgressDeadlineExceeded",
        "A revision's servers were not ready within `promotion.progressDeadlineSeconds`; the one before, if any, goes on serving.",
        "Look at the log of its pods; change the spec, or delete its Deployment to try it again.",
    )
    EVALUATING = (
        "Evaluating",
        "The candidate's servers answer, and `promotion.evaluations` are asked of them before clients are.",
        "Wait, or look at the log of the Job that the message names.",
    )
    BAKING = (
        "Baking",
        "The candidate answers `promotion.canaryPercent` of the sessions and is watched.",
        "Wait, or look at the log of the Job that the message names.",
    )
    CANARY_WORSE = (
        "CanaryWorse",
        "The candidate failed more requests, or took longer to the first byte, than `promotion.guard` allows; what served goes on.",
        "Look at `status.revisions[].canary` and at its pods; change the spec, or delete its Deployment and Job to try it again.",
    )
    EVALUATION_FAILED = (
        "EvaluationFailed",
        "The candidate misses a gate of `promotion.evaluations`, or could not be measured; what served before, if anything, goes on.",
        "Look at `status.revisions[].measured`; change the model or the bar. One that could not be measured is tried again without its Job and Deployment: delete both.",
    )
    RUN_STARTED = "RunStarted", "Of a sweep: a run was made.", "Nothing."
    RUN_STOPPED = "RunStopped", "Of a sweep: a run lost, and is suspended.", "Nothing."
    RUN_FORKED = "RunForked", "Of a sweep: a fork of a winner takes a loser's place.", "Nothing."
    RUN_ENDED = "RunEnded", "Of a sweep: a run is over.", "Read the message where it ended badly."
    DRAINING = "Draining", "Work is being handed back before pods go.", "Wait."
    SUSPENDED = "Suspended", "`spec.suspend` is true and the pods are gone.", "Set it to false."
    EVICTED = (
        "Evicted",
        "The queue took the quota back.",
        "Wait: the run goes on from its anchor when the quota returns.",
    )
    ACTORS_READY = "ActorsReady", "Enough actors sample.", "Nothing."
    PARTIALLY_ADMITTED = (
        "PartiallyAdmitted",
        "More actors are wanted than the queue gave quota for; those it has go on.",
        "Suspend and resume the run to queue for more, or ask for fewer.",
    )
    ACTORS_NOT_READY = (
        "ActorsNotReady",
        "Fewer actors than wanted are ready.",
        "Look at the actor pods; the run goes on with those it has.",
    )
    NO_ACTORS_NEEDED = "NoActorsNeeded", "The work samples nothing.", "Nothing."
    LEARNER_READY = "LearnerReady", "Every rank has joined.", "Nothing."
    LEARNER_NOT_READY = "LearnerNotReady", "A rank has not joined yet.", "Look at its pods."
    NO_LEARNER_NEEDED = "NoLearnerNeeded", "The work trains nothing.", "Nothing."
    WEIGHTS_VERIFIED = "WeightsVerified", "All loaded digests match.", "Nothing."
    LEARNING = "Learning", "Rewards differ within groups.", "Nothing."
    LOGPROBS_AGREE = (
        "LogprobsAgree",
        "Actors sample with the learner's own probabilities.",
        "Nothing.",
    )
    SNAPSHOT_TAKEN = "SnapshotTaken", "The newest snapshot is durable.", "Nothing."
    NO_SNAPSHOT_YET = "NoSnapshotYet", "The first anchor is still to come.", "Nothing."
    SCHEDULED = "Scheduled", "Snapshots are made as `spec.snapshots` says.", "Nothing."
    SNAPSHOT_FAILED = (
        "SnapshotFailed",
        "The last snapshot of a schedule has failed; the next one is made at its time.",
        "Look at the RolloutSnapshot that is named: its condition Failed says why.",
    )

    VERIFYING = "Verifying", "A snapshot that exists is being read and verified.", "Wait."
    SNAPSHOT_REFUSED = (
        "SnapshotRefused",
        "A snapshot that exists is not there, was changed, or is signed by nobody who is trusted.",
        "Correct `uri` and `digest`, or let the platform add its signer to the runtime's `trustedSigners`.",
    )
    PURGING = (
        "Purging",
        "A snapshot is being deleted, and its bytes before it.",
        "Wait, or set `deletionPolicy: Retain`: it goes at once, and its bytes stay.",
    )

    # Endings
    PURGED = "Purged", "The bytes of a snapshot that was deleted are gone.", "Nothing."
    PURGE_GIVEN_UP = (
        "PurgeGivenUp",
        "A snapshot was deleted and bytes of it stay; the message names the place and the reason.",
        "Remove them: `rollout snapshot prune --object-path PLACE --run-id UID --keep-last 0`.",
    )
    SUCCEEDED = "Succeeded", "The work is done.", "Nothing."
    FAILED = (
        "Failed",
        "The work ended badly; the message names the culprit.",
        "Read it, and the report.",
    )
    ACTIVE_SECONDS_EXCEEDED = (
        "ActiveSecondsExceeded",
        "The run went on longer than `limits.activeSeconds`.",
        "Raise the bound and restore from the last snapshot.",
    )
    PRE_RUNNING_SECONDS_EXCEEDED = (
        "PreRunningSecondsExceeded",
        "The first step did not begin within `limits.preRunningSeconds`.",
        "Look at pending pods, images and the model's load time.",
    )
    RETRIES_EXHAUSTED = (
        "RetriesExhausted",
        "A worker failed more often than `limits.retries` allows.",
        "Read its log; the last failure is in the message.",
    )
    GATE_FAILED = (
        "GateFailed",
        "An evaluation's interval lies below a gate with `action: StopRun`.",
        "Look at the evaluation; lower the bar only if it was wrong.",
    )

    TOO_MANY_FAILED_ROWS = (
        "TooManyFailedRows",
        "More rows than `infer.maxFailedRatio` allows have an error instead of an answer.",
        "Read the error file beside the results; mend the rows, or raise the ratio.",
    )
    NOTHING_MEASURED = (
        "NothingMeasured",
        "No prompt of an evaluation was answered; of a sweep: a run ended without a value of its objective.",
        "Look at the logs of the actors; of a sweep at the runs that the message names.",
    )
    DEADLINE_EXCEEDED = "DeadlineExceeded", "Not durable in `deadlineSeconds`.", "Make another one."
    RUN_GONE = "RunGone", "The run to be saved or followed is gone.", "Name a run that is there."

    # What a person must put right
    INVALID_SPEC = (
        "InvalidSpec",
        "The spec breaks a rule; field, reason and fix are in the message.",
        "Change the field as the message says.",
    )
    RUNTIME_NOT_FOUND = (
        "RuntimeNotFound",
        "The runtime does not exist.",
        "Create it, or name another in `spec.runtimeRef`.",
    )
    CEILING_EXCEEDED = (
        "CeilingExceeded",
        "The run asks for more than its runtime allows.",
        "Ask for less, or let the platform raise the ceiling.",
    )
    NO_SANDBOX = (
        "NoSandbox",
        "The run has tools or an environment that run what the policy writes, and there are no sandbox pods for it.",
        "Let the platform set the runtime's `sandbox` and the chart's `admissionPolicy.enabled`, or leave them out.",
    )
    NOT_ALLOWED = (
        "NotAllowed",
        "The run adds what its runtime does not allow, or its namespace may not use the runtime.",
        "Leave it out, name another runtime, or let the platform add it to the runtime's `allowed` or `allowedNamespaces`.",
    )
    TOO_MANY_RUNS = (
        "TooManyRuns",
        "As many runs of the namespace are started as the operator lets start; this one waits for a place.",
        "Wait, suspend another run, or let the platform raise the chart's `operator.runsPerNamespace`.",
    )
    KUEUE_NOT_INSTALLED = (
        "KueueNotInstalled",
        "The run names a queue, and the cluster does not serve Kueue's Workloads.",
        "Install Kueue, or take the queue away: `spec.queueName`, the label, or the runtime's.",
    )
    REFERENCE_NOT_FOUND = (
        "ReferenceNotFound",
        "A Secret, ConfigMap, run or snapshot named in the spec does not exist.",
        "Create it, or correct the name.",
    )
    MODEL_NOT_FOUND = (
        "ModelNotFound",
        "The model or its revision cannot be had.",
        "Correct `spec.model`, or give the token in `env`, from a Secret.",
    )
    DATA_NOT_FOUND = "DataNotFound", "The data cannot be had.", "Correct it, or give credentials."
    BAD_RECORD = (
        "BadRecord",
        "A row cannot be used; file and line are in the message.",
        "Correct the row, or set `onBadRecord: Skip`.",
    )
    REWARD_ERROR = (
        "RewardError",
        "A reward raised, hung, or returned something that is not a finite number.",
        "Correct the reward: the message names it and the first row that fails; then resume.",
    )
    OUT_OF_MEMORY = (
        "OutOfMemory",
        "A worker was killed for memory.",
        "Lower `microBatchTokens`, shard, or ask for more; `rollout plan` shows the arithmetic.",
    )
    IMAGE_PULL_FAILED = (
        "ImagePullFailed",
        "A pod's image cannot be pulled.",
        "Correct the image or its pull secret; suspend and resume.",
    )
    UNSCHEDULABLE = (
        "Unschedulable",
        "No node can take a pod.",
        "Compare requests and accelerator class with the nodes.",
    )
    GANG_INCOMPLETE = (
        "GangIncomplete",
        "The learner was not complete within `limits.gangSeconds`; its devices were given back.",
        "Wait for the next try, or ask for fewer nodes.",
    )
    NO_STORAGE_CLASS = (
        "NoStorageClass",
        "The ledger needs a volume and the cluster has no StorageClass for it.",
        "Name one in `storage.ledger.sqlite`, or use Postgres.",
    )
    STORAGE_UNREACHABLE = (
        "StorageUnreachable",
        "The object store does not answer or refuses.",
        "Check URI, credentials and network; the message holds the answer of the store.",
    )
    COORDINATOR_UNREACHABLE = "CoordinatorUnreachable", "No coordinator answers.", "Read its log."
    LEDGER_UNREACHABLE = (
        "LedgerUnreachable",
        "The database does not answer or refuses.",
        "Check the connection string and the database.",
    )
    LEDGER_BELONGS_TO_ANOTHER_RUN = (
        "LedgerBelongsToAnotherRun",
        "The ledger's first row names another run or spec.",
        "Give this run a ledger of its own.",
    )
    LEDGER_REWOUND = (
        "LedgerRewound",
        "The ledger is older than what a worker has seen acknowledged.",
        "Bring the newest database back; else restore from a snapshot as a new run.",
    )
    LEDGER_CORRUPT = (
        "LedgerCorrupt",
        "The ledger cannot be read.",
        "Restore from the last snapshot as a new run.",
    )
    FIELD_CONFLICT = (
        "FieldConflict",
        "Somebody else keeps changing a field that the operator owns.",
        "Stop the other writer; the message names it.",
    )
    CHILD_REFUSED = (
        "ChildRefused",
        "The operator itself refuses to send an object of the run: it is more than a run may have.",
        "Read the message: change the run or its runtime, suspend and resume; where neither explains it, report it.",
    )
    RECORD_UNVERIFIED = (
        "RecordUnverified",
        "The attempt's record was forged or changed, or the operator's key is lost: it is not read. Pods go on.",
        "Bring the Secret `rollout-operator-records` back, or suspend the run, wait for `Suspended`, resume.",
    )
    RECORD_FORMAT_UNKNOWN = (
        "RecordFormatUnknown",
        "The attempt's record is of a format that this operator does not read; another release wrote it. Pods go on.",
        "Run the operator's release that reads the format, or suspend the run, wait for `Suspended`, resume.",
    )
    FORBIDDEN = (
        "Forbidden",
        "The API server refused a call of the operator.",
        "Give the operator's role the verb in the message.",
    )
    API_SERVER_REFUSED = (
        "ApiServerRefused",
        "The API server refuses an object that the operator makes, or keeps failing.",
        "Read the message; it names the object and the server's words.",
    )
    CRD_OUTDATED = (
        "CRDOutdated",
        "The installed definitions are older than the operator, so that its status is refused.",
        "Upgrade the chart `rollout-crds` (or apply its definitions); the run goes on by itself.",
    )
    MANAGED_BY_GIT_OPS = (
        "ManagedByGitOps",
        "`limits.ttlAction` is `DeleteRun`, and a tool that keeps the object would make it again: it stays.",
        "Take the run out of Git or its release, or leave `limits.ttlAction` out.",
    )
    NODE_LOST = (
        "NodeLost",
        "A node with a pod of this run stopped answering.",
        "Delete the Node, or taint it out-of-service, when it is really gone.",
    )
    POD_FORCE_DELETED = "PodForceDeleted", "Pods of a lost node were deleted.", "Look at the node."
    NO_PROGRESS = (
        "NoProgress",
        "No step and no sample within `limits.noProgressSeconds`; the culprit is in the message.",
        "Look at that worker; it has been restarted.",
    )
    NO_LEARNING_SIGNAL = (
        "NoLearningSignal",
        "For 5 steps every group had equal rewards, so nothing can be learned.",
        "Look at samples: the task is too hard, too easy, or the reward is wrong.",
    )
    LOGPROBS_DRIFT = (
        "LogprobsDrift",
        "For 3 steps actors and learner were apart by more than `limits.mismatchKlWarn`.",
        "Compare engine version, dtype and sampling settings; see `rollout debug rollout-only`.",
    )
    TOKENIZATION_MISMATCH = (
        "TokenizationMismatch",
        "For 3 steps more samples than `limits.retokenisedWarn` had a text that encodes to other tokens.",
        "Training is right; check what reads the texts, and the model's tokenizer.",
    )
    REWARD_DIVERGENCE = (
        "RewardDivergence",
        "The training reward rose while the evaluation that selects fell by more than chance explains.",
        "Look at samples for a way around the reward; take the snapshot Best; `limits.rewardDivergence: StopRun` stops such a run.",
    )
    TRACKER_FAILED = (
        "TrackerFailed",
        "A tracker refused or lost metrics; the run's own file has them all.",
        "Look at the message; `rollout runs export` gives the metrics again.",
    )
    WEIGHTS_MISMATCH = (
        "WeightsMismatch",
        "An actor's weights did not verify; it is set aside and loads anew.",
        "Nothing for one; for many look at storage and engine versions.",
    )
    ACTORS_QUARANTINED = (
        "ActorsQuarantined",
        "More than half of the actors failed verification.",
        "Look at engine image and accelerator; the run has stopped.",
    )
    NOT_SUPPORTED = (
        "NotSupported",
        "The cluster or runtime cannot do what is asked.",
        "Read the message; choose another way.",
    )
    NAMESPACED_MODE = (
        "NamespacedMode",
        "The operator serves namespaces, so nodes and StorageClasses are not looked at.",
        "Look at pods that stay Pending or Terminating; an operator of the whole cluster sees more.",
    )
    RESTARTING = (
        "Restarting",
        "A worker has failed and starts again after a pause.",
        "Read its log.",
    )
