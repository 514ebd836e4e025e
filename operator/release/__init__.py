"""Makes, verifies and pushes a release of the repository; a tool of the checkout that no distribution holds.

``python -m release build`` needs no network: wheels, charts and images as OCI layouts, SBOMs, digests and
signatures go into one folder. ``verify`` reads that folder as if a stranger had written it, and ``push`` is
the only step that reaches another machine. Nothing is released that does not verify.
"""
