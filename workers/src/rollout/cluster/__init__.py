"""A person's view of a Kubernetes cluster: our kinds, their pods, events and logs, with that person's own rights.

``client`` is the only importer of the ``kubernetes`` package; the rest is pure, or reads through it, and takes plain objects.
Nothing here acts for the operator. In a pod it serves the console, which has rights of its own to read and asks what its
viewers may.
"""
