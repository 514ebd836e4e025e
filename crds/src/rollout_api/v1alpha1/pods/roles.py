"""The two kinds of workers a user sizes: actors, which sample, and the learner, which trains."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, cast, get_args

from pydantic import Field, model_validator

from rollout_api.base import ApiModel, Name, OneOf, Real, Rule, filled, many
from rollout_api.v1alpha1.common import Parameters
from rollout_api.v1alpha1.pods.pods import Accelerator, PodSettings

EngineName = Literal["embedded", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do: whoever needs one of these asks for it, and for no engine's name."""

    learner_forward: bool = False
    """It samples with the learner's own forward: fresh samples need no correction of their logprobs."""
    adapters: bool = False
    """It serves LoRA adapters beside the base, several versions at once; else the merged model is published."""
    expert_routes: bool = False
    """It says which experts each token went to, so that the learner trains the same ones."""
    no_routes_because: str = ""
    """Why it does not, as far as a refusal can say more than that."""
    server: bool = False
    """It is a server beside the actor: in a pod a container of its own, which has the devices."""
    continuous: bool = False
    """It takes samples one by one as they come and batches them itself; else it is given one batch at a time."""
    pooling: bool = False
    """It gives vectors and scores of the rows of an inference run."""


class Embedded(ApiModel):
    """The learner's own forward, on `transformers`: fixed shapes, exact logprobs, CPU-friendly."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        learner_forward=True, expert_routes=True, pooling=True
    )
    batch_groups: int | None = Field(default=None, ge=1, le=4096)
    """Groups generated together. Unset: those of a step, at most 256 samples; changes no token in Exact."""


class Vllm(ApiModel):
    """A vLLM server beside each actor, on a Unix socket."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        adapters=True,
        server=True,
        continuous=True,
        no_routes_because="vLLM 0.32 says it under its Model Runner V2 alone, which needs Triton: the build for"
        " CPUs has none, and on a GPU it is not proven here",
    )
    tensor_parallel: int = filled(1, ge=1, le=64)
    """Devices that share one copy of the model."""
    image: Name | None = None
    """Container image. Unset: the runtime's."""
    gpu_memory_utilization: Real = filled(0.9, gt=0, le=1)
    """Share of a device's memory that the server takes."""
    max_model_length: int | None = Field(default=None, ge=1, le=16_777_216)
    """Longest prompt and completion in tokens. Unset: what this run can need."""
    max_num_seqs: int | None = Field(default=None, ge=1, le=65_536)
    """Sequences decoded at once. Unset: 1 in Exact, else vLLM's own."""
    sleep_level: int = filled(0, ge=0, le=2)
    """How the server gives its device to the learner while it has nothing to sample, as vLLM counts: 1 copies weights to
    host memory, 2 forgets them and loads the next version whole. 0: it keeps its share. Levels 1 and 2 have slept on no
    device here, and a plan refuses them."""
    weight_transfer: Literal["File", "Nccl", "SparseNccl", "Ipc"] = filled("File")
    """How new weights come into the server. `File`, the default everywhere: the actor patches a file that the server
    maps, in memory where there is room, and the server loads the modules that changed; an actor may come and go. The
    others move weights between GPUs by vLLM's own engines; they are never chosen for you, and unproven until a device
    has run them: a plan refuses them."""
    extra_arguments: Parameters = many(64, key="name")
    """Further server flags, without dashes; those that do more than tune the server are refused."""


class Engine(OneOf):
    """The engine that generates tokens."""

    embedded: Embedded | None = None
    """In the actor's process; the laptop's default."""
    vllm: Vllm | None = None
    """A vLLM server; the cluster's default."""

    @property
    def name(self) -> EngineName:
        """Which one it is."""
        return cast("EngineName", self.chosen)

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self.value.capabilities


CAPABILITIES: Mapping[str, Capabilities] = {
    name: get_args(field.annotation)[0].capabilities for name, field in Engine.model_fields.items()
}
"""Every engine's by its name in a manifest."""


class Autoscale(ApiModel):
    """Let the number of workers follow how long they and the learner wait for each other."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self.min <= self.max", "min must not be above max", "min"),
    )

    min: int = Field(ge=1, le=4096)
    """Fewest workers that shall run."""
    max: int = Field(ge=1, le=4096)
    """Most workers that shall run."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min must not be above max, got {self.min} and {self.max}")
        return self


class Actors(PodSettings):
    """The workers that sample and score."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *PodSettings.rules,
        Rule(
            "!has(self.autoscale) || !has(self.replicas) || self.replicas == 1"
            " || (self.autoscale.min <= self.replicas && self.replicas <= self.autoscale.max)",
            "replicas lies outside autoscale: start inside the range",
            "replicas",
        ),
        Rule(
            "!has(self.engine) || !has(self.accelerator) || !has(self.accelerator.count)"
            " || !has(self.engine.vllm) || !has(self.engine.vllm.tensorParallel)"
            " || self.engine.vllm.tensorParallel <= self.accelerator.count",
            "tensorParallel needs more devices than accelerator.count: raise it, or lower"
            " tensorParallel",
            "engine",
        ),
    )

    replicas: int = Field(default=1, ge=0, le=4096)
    """Workers wanted; may change at any time. `kubectl scale` sets this field, which therefore always has a
    value: 1, the default, counts as unset under `autoscale`, and as `autoscale.min`."""
    engine: Engine | None = None
    """What generates. Unset: the runtime's (vllm in a cluster, embedded on a laptop)."""
    nodes_per_replica: int = filled(1, ge=1, le=64)
    """Pods that serve one copy of the model together. More than 1 is refused by this version."""
    accelerator: Accelerator | None = None
    """Devices of a pod. Unset: none."""
    preemptible: bool = filled(default=False)
    """Run on capacity that may be taken away; losing an actor loses no trajectory."""
    autoscale: Autoscale | None = None
    """Let the number follow the learner, beginning at `replicas` (unset: at `min`); refused together with an HPA."""

    @property
    def chosen_engine(self) -> Engine:
        """What generates; the embedded engine where nothing has filled it in."""
        return self.engine or Engine(embedded=Embedded())


class Ddp(ApiModel):
    """Every rank holds the whole model; gradients are averaged."""


class Fsdp(ApiModel):
    """Parameters, gradients and optimizer state are sharded over the ranks (FSDP2)."""

    reshard_after_forward: bool = filled(default=True)
    """Free gathered parameters between forward and backward: less memory, more traffic."""


class Strategy(OneOf):
    """How the learner's ranks share the work."""

    ddp: Ddp | None = None
    """Each rank holds the whole model; the default."""
    fsdp: Fsdp | None = None
    """Ranks share parameters, gradients and optimizer state."""


class Learner(PodSettings):
    """The workers that train."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *PodSettings.rules,
        Rule(
            "!has(self.accelerator) || !has(self.accelerator.count)"
            " || !has(self.processesPerNode)"
            " || self.processesPerNode <= self.accelerator.count",
            "processesPerNode is more than accelerator.count: one rank per device",
            "processesPerNode",
        ),
    )

    nodes: int = filled(1, ge=1, le=1024)
    """Pods of the learner."""
    processes_per_node: int = filled(1, ge=1, le=64)
    """Ranks per pod; one per device."""
    accelerator: Accelerator | None = None
    """Devices of a learner pod. Unset: none."""
    strategy: Strategy = filled(default_factory=lambda: Strategy(ddp=Ddp()))
    """How the ranks share the work."""
    sequence_parallel: int = filled(1, ge=1, le=64)
    """Ranks that share each sequence (Ulysses): every rank computes a part of its tokens, and in attention a part of the heads, so that longer ones
    fit. Divides the ranks, and the model's heads of queries and of keys. 1: a rank computes whole sequences."""
    optimizer_offload: bool = filled(default=False)
    """Hold the optimizer's states (8 bytes a trained number with adamw) in host memory, and on the device only the piece that a step is computing
    (256 MiB at most): less device memory for a copy of the states there and back in each update. No number changes; a run may go on with it or
    without. Unproven on devices."""
    standby: bool = filled(default=False)
    """A second learner beside the first: it holds the state of the last committed step, and takes the first one's place when
    a rank of it is lost. It needs the same memory, and computes each step again. One machine without accelerators only:
    elsewhere a plan refuses it."""

    @property
    def num_processes(self) -> int:
        """Ranks over all nodes."""
        return self.nodes * self.processes_per_node

    @property
    def num_shares(self) -> int:
        """Parts that the samples of an update are shared out in."""
        return self.num_processes // self.sequence_parallel

    @property
    def service_threads(self) -> int:
        """Compute threads of a training service: the whole cores of ``resources``, at least one."""
        return max(1, 0 if self.resources is None else self.resources.whole_cores)
