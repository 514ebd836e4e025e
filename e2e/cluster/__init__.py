"""A real Kubernetes cluster for tests, from plain processes: no Docker, no registry, no Helm of others.

`python -m cluster build|up|down|status` for people; `cluster.providers` for tests. It refuses to touch what it did
not start: every process is known by pid and start time, every link, cgroup and folder carries its instance's name.
"""
