"""Every message between the coordinator and the processes of a run, as frozen msgspec structs, by who speaks.

Bodies travel as msgpack (``/v1/status`` as JSON); ``rollout.protocol.routes`` says which goes where.

    from rollout.protocol import messages as m
"""

from rollout.protocol.messages.actor import *  # noqa: F403 - one name for all messages: m.Claim
from rollout.protocol.messages.base import *  # noqa: F403
from rollout.protocol.messages.learner import *  # noqa: F403
from rollout.protocol.messages.operator import *  # noqa: F403
from rollout.protocol.messages.rendezvous import *  # noqa: F403
from rollout.protocol.messages.sandboxes import *  # noqa: F403
