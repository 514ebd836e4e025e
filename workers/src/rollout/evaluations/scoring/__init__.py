"""How answers of the known suites are scored, as lm-evaluation-harness scores them.

Text in, numbers out: nothing here reads files, asks a model or runs what a model wrote. Each scorer returns named
floats of which one is the reward (``RewardSource.counts``); the others are measured beside it.
"""
