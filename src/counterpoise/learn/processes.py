"""This file holds what several training processes need to know of each other; started by torchrun, or one alone."""

from __future__ import annotations

import os

import torch
from torch import nn

from counterpoise.errors import OptionError
from counterpoise.learn.many import check_device


def join(device: str) -> tuple[int, int, torch.device]:
    """This process's rank, how many there are, and its device; joins the group that torchrun announces."""
    check_device(device)
    announced = int(os.environ.get("WORLD_SIZE", "1"))
    if announced > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 0, 1, torch.device(device)
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", rank))
        if local >= torch.cuda.device_count():
            raise OptionError(f"process {local} has no GPU of its own: start {torch.cuda.device_count()} processes.")
        torch.cuda.set_device(local)
        return rank, processes, torch.device("cuda", local)
    return rank, processes, torch.device(device)


def shared(module: nn.Module, processes: int, device: torch.device) -> nn.Module:
    """A module whose gradients are averaged over the processes."""
    if processes == 1:
        return module
    ids = [device.index] if device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(module, device_ids=ids)


def wait(processes: int) -> None:
    """Until all processes are here, so that a file one of them wrote is there for all."""
    if processes > 1:
        torch.distributed.barrier()
