"""Losses and advantages as pure tensor functions: no clock, no file, no log, no process group.

One file is one idea; ``grpo`` and ``sft`` put the ideas together into a whole algorithm. Axes:

    C  scored tokens of a micro-batch, completion after completion, without padding
    B  completions of a micro-batch; ``sequence_C[c]`` says to which of them token c belongs
    P  prompts (groups) of a batch         G  samples of a group

A 0/1 mask over C leaves tokens out that the policy did not sample (a tool's output): what lies under
a 0 never reaches a result. Losses are minimised. Nothing here divides by the size of a micro-batch:
denominators are counted over the whole mini-batch, all ranks and micro-batches together, before the
first backward (``aggregation``).
"""
