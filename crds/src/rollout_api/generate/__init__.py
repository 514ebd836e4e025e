"""Everything that is generated from the models: CRDs, editor schemas, the CRD chart, reference pages.

``python -m rollout_api.generate`` writes the files, ``--check`` fails when one differs. The models
are read once into a small tree (``tree``); each other file turns that tree into one form. Nothing
here is imported at run time, and nothing here talks to a cluster.
"""
