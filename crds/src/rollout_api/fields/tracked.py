"""Which tool keeps an object as it stands in Git or in a release: deleted, it would be made again, and run again."""

from __future__ import annotations

from collections.abc import Mapping

ANNOTATIONS: Mapping[str, str] = {
    "argocd.argoproj.io/tracking-id": "Argo CD",
    "meta.helm.sh/release-name": "Helm",
}
LABELS: Mapping[str, str] = {
    "kustomize.toolkit.fluxcd.io/name": "Flux",
    "helm.toolkit.fluxcd.io/name": "Flux",
    "app.kubernetes.io/instance": "Argo CD, which may track by this label,",
}


def find_tracker(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """Who would make the object again, and by which mark that is known; empty when nobody would."""
    for what, marks, there in (
        ("annotation", ANNOTATIONS, annotations),
        ("label", LABELS, labels),
    ):
        for key, tool in marks.items():
            if key in there:
                return f"{tool} keeps this object ({what} {key}: {there[key]})"
    return ""
