"""Random numbers on the device that needs them."""

import torch


def generator_on(device: torch.device) -> torch.Generator:
    """A generator for tensors of a device: a GPU draws its own, which are not those of the processor."""
    return torch.Generator(device if device.type == "cuda" else "cpu")


def seed_default(device: torch.device, seed: int) -> None:
    """Seeds the stream that `dropout` and `randperm` draw from on a device."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        # torch.manual_seed takes a third of a millisecond to tell devices that are not there.
        torch.default_generator.manual_seed(seed)
