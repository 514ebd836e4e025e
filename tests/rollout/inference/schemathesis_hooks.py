"""What Schemathesis is told of our API beside its description: models that there are, and the one rule that no schema can say.

Loaded by its ``SCHEMATHESIS_HOOKS``; nothing of ours is imported here.
"""

import schemathesis

MODELS = {"/v1/embeddings": "vectors", "/classify": "scores"}
"""By path; else the one that answers with text. Pairs are scored by either kind of model."""


@schemathesis.hook
def map_body(context, body):
    """A model's name that may be one is that of a model that answers this path: others are known not to be there."""
    if (
        isinstance(body, dict)
        and isinstance(body.get("model"), str)
        and 0 < len(body["model"]) <= 256
    ):
        path = context.operation.path
        pairs = "score" in path or "rerank" in path
        return {**body, "model": "scores" if pairs else MODELS.get(path, "text")}
    return body


@schemathesis.hook
def filter_body(context, body):
    """Two lists are equally long, or the first has one entry, as the description's words say."""
    return not isinstance(body, dict) or not any(
        isinstance(body.get(one), list)
        and len(body[one]) > 1
        and len(body[one]) != _num(body.get(other))
        for one, other in (("queries", "documents"), ("text_1", "text_2"))
    )


def _num(value):
    return len(value) if isinstance(value, list) else 1
