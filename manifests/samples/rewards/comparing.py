"""A reward that compares the samples of a group with each other."""


class Nearest:
    """The share of its siblings that a sample is nearer to the right answer than, half for those as near."""

    def score_group(self, prompts, completions, rows):
        """One number in [0, 1] for each sample of one group."""
        far = [
            _distance(one.text, row["answer"]) for one, row in zip(completions, rows, strict=True)
        ]
        others = len(far) - 1
        return [
            (sum(1.0 if own < one else 0.5 for one in far if own <= one) - 0.5) / others
            for own in far
        ]


def _distance(said, wanted):
    try:
        return abs(int(said.strip()) - int(wanted))
    except ValueError:
        return float("inf")
