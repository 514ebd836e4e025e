"""A person's view of a Kubernetes cluster: our kinds, their pods, events and logs, with that person's own rights.

``client`` is the only importer of the ``kubernetes`` package; the rest is pure and reads plain objects.
Nothing here acts for the operator, and nothing runs in a pod.
"""
