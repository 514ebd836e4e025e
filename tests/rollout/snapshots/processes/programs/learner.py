"""A learner of a few steps in torch: optimizer state, dropout's random state, threads; on one rank, or on several by gloo."""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn

from rollout.snapshots.processes.point import ImagePoint

STEPS, SIZE = int(sys.argv[1]), int(sys.argv[2])
RANKS = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))

torch.manual_seed(7)
torch.set_num_threads(2)
model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Dropout(0.1), nn.Linear(SIZE, 1))
if RANKS > 1:
    distributed.init_process_group("gloo")
    torch.manual_seed(7 + RANK)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def digest() -> str:
    hasher = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for tensor in model.parameters():
        hasher.update(tensor.detach().numpy().tobytes())
        for one in optimizer.state.get(tensor, {}).values():
            hasher.update(one.numpy().tobytes())
    return hasher.hexdigest()


def renew(variables) -> None:
    print("renewed", *sorted(variables), os.environ["LEARNER_TOKEN"], flush=True)


point = ImagePoint(digest, renew) if RANK == 0 else None
for step in range(STEPS):
    loss = model(torch.randn(16, SIZE)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if RANKS > 1:
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
    optimizer.step()
    if RANK == 0:
        print("step", step, digest(), flush=True)
        point.reach(step)
        while step == STEPS // 2 and not Path("go").exists():
            time.sleep(0.02)
            point.reach(step)
if RANK == 0:
    print("ended", digest(), flush=True)
