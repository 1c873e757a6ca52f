"""Devices: which ones training can use, and which one each process gets."""

from __future__ import annotations

import os

import torch
from torch import nn

from counterpoise.errors import Argument, OptionError


def check_device(device: str) -> None:
    """Check that the device is a CPU or a GPU, and that there is a GPU if you ask for one."""
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError):
        kind = None
    if kind not in ("cpu", "cuda"):  # others lack the double precision that sums are kept in
        raise OptionError(f"device must be 'cpu' or 'cuda' (or 'cuda:1', …); found {device!r}.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise OptionError(
            f"you asked for device {device!r}, but PyTorch finds no CUDA here.",
            do=["Use ", Argument("device", "cpu"), "."],
        )


def join(device: str) -> tuple[int, int, torch.device]:
    """Join the group that torchrun announces; returns this process's rank, how many processes there are, and its device."""
    announced = int(os.environ.get("WORLD_SIZE", "1"))
    if announced > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 0, 1, torch.device(device)
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if device == "cuda":
        local, gpus = int(os.environ.get("LOCAL_RANK", rank)), torch.cuda.device_count()
        if local >= gpus:
            raise OptionError(f"process {local} has no GPU to itself.", do=f"Start {gpus} processes.")
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
    """Wait until all processes get here, so that a file written by one of them is there for all."""
    if processes > 1:
        torch.distributed.barrier()
