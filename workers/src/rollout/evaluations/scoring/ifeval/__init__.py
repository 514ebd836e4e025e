"""Verifiable instructions (Zhou et al. 2023, arXiv:2311.07911): 25 checks, strict and loose, as lm-evaluation-harness counts them.

Deterministic, which the reference is not: languages are detected with a fixed seed, and an instruction without its
arguments is left out of the count where the reference draws them at random.
"""
