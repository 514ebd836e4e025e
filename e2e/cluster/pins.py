"""Every binary of the test cluster: its Go module, version and checksum.

One place, so that a new version is a change of one line. `checksum` is the module's own h1 sum as `go.sum` has it: a
module that differs is not built. Modules with a `wrapper` are built through that folder's `go.mod`, whose `go.sum` holds them.
"""

from dataclasses import dataclass

KUBERNETES = "1.36.3"
CONTAINERD_TAGS = "no_btrfs,no_devmapper,no_zfs,no_aufs,no_tracing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A Go module to build binaries from; `keep` names folders of its source that are needed beside them."""

    name: str
    path: str
    version: str
    checksum: str = ""
    wrapper: str = ""
    cgo: bool = False
    tags: str = ""
    version_variable: str = ""
    keep: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """One command of a module; `package` as `go build` takes it in the module, or in its wrapper."""

    module: Module
    package: str


_kubernetes = Module(
    name="kubernetes",
    path="k8s.io/kubernetes",
    version=f"v{KUBERNETES}",
    wrapper="go",
    version_variable="k8s.io/component-base/version.gitVersion",
)
_etcd = Module(name="etcd", path="go.etcd.io/etcd/server/v3", version="v3.6.8", wrapper="go")
_kwok = Module(
    name="kwok",
    path="sigs.k8s.io/kwok",
    version="v0.8.0",
    checksum="h1:OTIOTwgROqPMovcTwxICx2eYQ4AwLpSx5EpjbDKF4SQ=",
    version_variable="sigs.k8s.io/kwok/pkg/consts.Version",
    keep=("kustomize/stage",),
)
_helm = Module(
    name="helm",
    path="helm.sh/helm/v3",
    version="v3.22.0",
    checksum="h1:n1if5iQgHYsujPAcO5oonH/KiSNUmqmUF0iGVjSF3AU=",
    version_variable="helm.sh/helm/v3/internal/version.version",
)
_helm_4 = Module(
    name="helm-4",
    path="helm.sh/helm/v4",
    version="v4.3.1",
    checksum="h1:UndCoLe9UPmNoL7IvWzaUXveL7T5t/ijoorEmgJdI9g=",
    version_variable="helm.sh/helm/v4/internal/version.version",
)
_containerd = Module(
    name="containerd",
    path="github.com/containerd/containerd/v2",
    version="v2.3.7",
    checksum="h1:7PGbgAVKE4ieQjFPv7+kwAv7f9dCtRpExZwjExHD/Fk=",
    tags=CONTAINERD_TAGS,
    version_variable="github.com/containerd/containerd/v2/version.Version",
)
_cni = Module(
    name="cni-plugins",
    path="github.com/containernetworking/plugins",
    version="v1.9.1",
    checksum="h1:8oU6WsIsU3bpnNZuvHp74a6cE1MJwbj2P7s4/yTUNlA=",
)
_runc = Module(
    name="runc",
    path="github.com/opencontainers/runc",
    version="v1.5.2",
    checksum="h1:eUUowc2WJCnFYzI87C1WqRcu356Dk/wsoi90y+2wEfE=",
    cgo=True,
    tags="seccomp",
    version_variable="main.version",
)
_coredns = Module(
    name="coredns",
    path="github.com/coredns/coredns",
    version="v1.14.7",
    wrapper="dns",
)
_jobset = Module(
    name="jobset",
    path="sigs.k8s.io/jobset",
    version="v0.12.0",
    wrapper="rivals/jobset",
    keep=("config/components/crd/bases",),
)
_lws = Module(
    name="lws",
    path="sigs.k8s.io/lws",
    version="v0.9.0",
    wrapper="rivals/lws",
    keep=("config/crd/bases",),
)
_kuberay = Module(
    name="kuberay",
    path="github.com/ray-project/kuberay/ray-operator",
    version="v1.6.0",
    wrapper="rivals/kuberay",
    keep=("config/crd/bases",),
)
_twin = Module(name="twin", path="rollout-bench/twin", version="v1", wrapper="rivals/twin")
_cert_manager = Module(
    name="cert-manager",
    path="github.com/cert-manager/cert-manager",
    version="v1.21.2",
    wrapper="certmanager",
    keep=("deploy/crds",),
)
_kueue = Module(
    name="kueue",
    path="sigs.k8s.io/kueue",
    version="v0.18.4",
    checksum="h1:+Vs1H5sjXeSGG8BxvkrJCrpovB0vpuIHfkwSmlNSkyc=",
    version_variable="sigs.k8s.io/kueue/pkg/version.GitVersion",
    keep=("config",),
)
_versitygw = Module(
    name="versitygw",
    path="github.com/versity/versitygw",
    version="v1.8.0",
    checksum="h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc=",
)
_restic = Module(
    name="restic",
    path="github.com/restic/restic",
    version="v0.18.1",
    checksum="h1:XmTfPA6+cUP2hPKXjUhHTj0GNfoWM1G1uhf+Ssg/j1M=",
)
_fake_gcs = Module(
    name="fake-gcs-server",
    path="github.com/fsouza/fake-gcs-server",
    version="v1.56.1",
    checksum="h1:K03sAvbLvDz4hAynpCCUqnNRp+ik9JFSvHbkD/wTPOU=",
)

_registry = Module(
    name="registry",
    path="github.com/distribution/distribution/v3",
    version="v3.1.2",
    checksum="h1:/Bv2YIqqSR00HiO49FT93hovy6r9IlrzwUDsJjCN5qg=",
)
_cosign = Module(
    name="cosign",
    path="github.com/sigstore/cosign/v3",
    version="v3.1.3",
    checksum="h1:001JQRI/PJ/5T+g/kJ1KTvKFbb322+fomc+pHDZ/6sg=",
)
_kind = Module(
    name="kind",
    path="sigs.k8s.io/kind",
    version="v0.33.0",
    checksum="h1:AjvDv3vOygb/VKLVQW87lfktIBzkxR8Ump9DjxC8+Lk=",
)

FLUX_KUSTOMIZE = Module(
    name="kustomize-controller",
    path="github.com/fluxcd/kustomize-controller",
    version="v1.9.0",
    checksum="h1:WfM+bQUGUGW2qyrrTgh2bIVSZSPmc3JC7234K8NiTWQ=",
    wrapper="flux/kustomize",
    keep=("config/crd/bases",),
)
FLUX_SOURCE = Module(
    name="source-controller",
    path="github.com/fluxcd/source-controller",
    version="v1.9.0",
    checksum="h1:5msg2yyjVYDULZos+2ve8MZzcSqTpusiXmrOeBhc9yY=",
    wrapper="flux/source",
    keep=("config/crd/bases",),
)
"""Tests read the definitions of these two without building them, too."""

KEDA = Module(
    name="keda",
    path="github.com/kedacore/keda/v2",
    version="v2.21.0",
    checksum="h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
)
GATEWAY_API = Module(
    name="gateway-api",
    path="sigs.k8s.io/gateway-api",
    version="v1.4.1",
    checksum="h1:NPxFutNkKNa8UfLd2CMlEuhIPMQgDQ6DXNKG9sHbJU8=",
)
KARPENTER = Module(
    name="karpenter",
    path="github.com/aws/karpenter-provider-aws",
    version="v1.12.0",
    checksum="h1:i85sVPjpZ0kfUCGZEbg5h1c5FF4M7UrdsQIKYwZHIJA=",
)
EXTERNAL_SECRETS = Module(
    name="external-secrets",
    path="github.com/external-secrets/external-secrets",
    version="v1.3.2",
    checksum="h1:u2J8RjlHIeF0oZCqtl92adI/uZWUwOesJIDkfql6LqQ=",
)
"""Nothing is built from these: tests read their definitions."""

BINARIES = {
    "etcd": Binary(module=_etcd, package="./etcd"),
    **{
        name: Binary(module=_kubernetes, package=f"k8s.io/kubernetes/cmd/{name}")
        for name in (
            "kubectl",
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
        )
    },
    "kwok": Binary(module=_kwok, package="./cmd/kwok"),
    "helm": Binary(module=_helm, package="./cmd/helm"),
    "helm-4": Binary(module=_helm_4, package="./cmd/helm"),
    "containerd": Binary(module=_containerd, package="./cmd/containerd"),
    "containerd-shim-runc-v2": Binary(module=_containerd, package="./cmd/containerd-shim-runc-v2"),
    "ctr": Binary(module=_containerd, package="./cmd/ctr"),
    "bridge": Binary(module=_cni, package="./plugins/main/bridge"),
    "loopback": Binary(module=_cni, package="./plugins/main/loopback"),
    "portmap": Binary(module=_cni, package="./plugins/meta/portmap"),
    "host-local": Binary(module=_cni, package="./plugins/ipam/host-local"),
    "runc": Binary(module=_runc, package="."),
    "coredns": Binary(module=_coredns, package="."),
    "kueue": Binary(module=_kueue, package="./cmd/kueue"),
    "cert-manager": Binary(module=_cert_manager, package="."),
    "jobset": Binary(module=_jobset, package=_jobset.path),
    "lws": Binary(module=_lws, package=f"{_lws.path}/cmd"),
    "kuberay": Binary(module=_kuberay, package=_kuberay.path),
    "twin": Binary(module=_twin, package="."),
    "versitygw": Binary(module=_versitygw, package="./cmd/versitygw"),
    "fake-gcs-server": Binary(module=_fake_gcs, package="."),
    "registry": Binary(module=_registry, package="./cmd/registry"),
    "cosign": Binary(module=_cosign, package="./cmd/cosign"),
    "kind": Binary(module=_kind, package="."),
    "source-controller": Binary(module=FLUX_SOURCE, package=FLUX_SOURCE.path),
    "kustomize-controller": Binary(module=FLUX_KUSTOMIZE, package=FLUX_KUSTOMIZE.path),
    "restic": Binary(module=_restic, package="./cmd/restic"),
}

CONTROL_PLANE = ("etcd", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
FAKE_NODES = ("kwok",)
CHARTS = ("helm",)
REAL_NODES = (
    *("containerd", "containerd-shim-runc-v2", "ctr", "runc"),
    *("bridge", "loopback", "portmap", "host-local"),
    *("kubelet", "kube-proxy", "coredns"),
)
EVERYTHING = (*CONTROL_PLANE, *FAKE_NODES, *CHARTS, *REAL_NODES)
RIVALS = ("jobset", "lws", "kuberay", "twin")
"""Only the operator's benchmark needs them."""
HELM_4 = ("helm-4",)
"""Only a slow test needs it."""
CERT_MANAGER = ("cert-manager",)
"""Only a slow test needs it."""
KUEUE = ("kueue",)
"""Only slow tests need it."""
FLUX = ("source-controller", "kustomize-controller")
"""Only slow tests need them."""
OBJECT_SERVERS = ("versitygw", "fake-gcs-server")
"""Only slow tests and a benchmark of object stores need them."""
BACKUPS = ("restic",)
"""Only a benchmark of snapshots needs it."""
KIND = ("kind",)
"""Only `make kind` and a slow test need it."""
