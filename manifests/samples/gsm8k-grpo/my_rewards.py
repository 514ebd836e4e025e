"""A reward of one's own in three lines: shorter answers earn more."""


def brevity(prompts, completions, rows):
    """1 for an empty answer, towards 0 for a long one; one float per completion."""
    return [1.0 / (1 + len(completion.text)) for completion in completions]
