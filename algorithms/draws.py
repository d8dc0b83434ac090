"""Random numbers on the device that needs them."""

import torch
from torch import Tensor

# Bits of a draw of the processor that decide over one entry, and of the words that it draws.
BITS, WORD = 16, 64


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


def fill_kept(out: Tensor, p: float, generator: torch.Generator | None = None) -> Tensor:
    """Writes 1 where dropout keeps an entry and 0, with probability p in [0, 1), where it does not; returns `out`.

    But on NVIDIA's GPUs p counts in steps of 2^-16, and four entries share a word of the stream: on a processor
    `bernoulli_` may take eight times as long, a third of a step of a small GNN.

    Args:
        out: Of any shape and floating type; what it holds is not read.
        p: As above.
        generator: Of the device; None: its default one.
    """
    if out.device.type == "cuda":
        return out.bernoulli_(1 - p, generator=generator)
    words = torch.empty(-(-out.numel() * BITS // WORD), dtype=torch.int64, device=out.device)
    words.random_(-(2 ** (WORD - 1)), None, generator=generator)
    drawn = words.view(torch.int16)[: out.numel()].view(out.shape)
    return torch.ge(drawn, min(round(p * 2**BITS), 2**BITS - 1) - 2 ** (BITS - 1), out=out)


class Stream:
    """What a device's default generator draws from one seed: within each block it goes on where the last one ended."""

    def __init__(self, device: torch.device, seed: int) -> None:
        """Leaves the default generator as it is."""
        cuda = device.type == "cuda"
        self._default = torch.cuda.default_generators[device.index or 0] if cuda else torch.default_generator
        outer = self._default.get_state()
        seed_default(device, seed)
        self._state = self._default.get_state()
        self._default.set_state(outer)

    def __enter__(self) -> None:
        self._outer = self._default.get_state()
        self._default.set_state(self._state)

    def __exit__(self, *error: object) -> None:
        self._state = self._default.get_state()
        self._default.set_state(self._outer)
