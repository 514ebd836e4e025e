"""How a model that scores is shown a query and a document: by its own template for pairs, or as a question and its answer.

A reward model was trained on conversations, so a pair is one: the user asks, the assistant answers, and the score is read at
the end of the answer. A server of vLLM is given the same as a template of its own. Never loads transformers.
"""

from __future__ import annotations

import re
from pathlib import Path

from tokenizers import Tokenizer

from rollout.errors import SpecError
from rollout.rendering.declared import TOKENIZER_FILE, read_declared

_PAIRS = re.compile(r"""["']document["']""")
"""In a template that renders pairs: the role of what is ranked."""
_AS_CONVERSATION = (
    "{%- if messages[0]['role'] == 'query' %}{% set messages = [{'role': 'user', 'content': messages[0]['content']},"
    " {'role': 'assistant', 'content': messages[1]['content']}] %}{% endif -%}"
)
_PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}{{ eos_token }}"


def pair_template(chat_template: str | None) -> str | None:
    """A model's own template, where that names a query and a document."""
    return chat_template if chat_template and _PAIRS.search(chat_template) else None


def server_template(folder: Path) -> str | None:
    """What a server is given to render pairs by; None: it joins two texts as the tokenizer does. Raises SpecError.

    The server reads the score at the last token, and puts before every text what the tokenizer does: what a template
    writes behind the answer's end is cut off, and so is a first token that it writes itself.
    """
    declared = read_declared(folder)
    template = declared.chat_template
    own = pair_template(template)
    if own is not None:
        return own
    if template is None:
        return _AS_CONVERSATION + _PLAIN if "eos_token" in declared.specials else None
    first = declared.specials.get("bos_token")
    cut = ".removeprefix(bos_token)" if first and _adds(folder, first) else ""
    return f"{_AS_CONVERSATION}{{%- set shown %}}{template}{{% endset -%}}{{{{ (shown ~ '').rstrip(){cut} }}}}"


def _adds(folder: Path, first: str) -> bool:
    """Whether the tokenizer puts this token before every text."""
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        return False
    try:
        return Tokenizer.from_file(str(path)).encode("").tokens[:1] == [first]
    except Exception as error:  # the library has no class of its own for it
        raise SpecError(f"tokenizer {path} is broken: {error}") from error
