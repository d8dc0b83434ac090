"""Random streams by what they are for, on the device that computes."""

import hashlib
from collections.abc import Callable

import torch

from shoal.algorithms.models.layers.dropout import DRAWN, KEYED
from shoal.algorithms.protocol import MODEL

CPU = torch.device("cpu")


def key(*parts: int | str) -> int:
    """Makes a 63-bit seed from e.g. (run seed, round, client, purpose)."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator_on(device: torch.device) -> torch.Generator:
    """Makes a generator for tensors of a device: a GPU draws its own, which are not those of the processor."""
    return torch.Generator(device if device.type == "cuda" else "cpu")


def seed_default(device: torch.device, seed: int) -> None:
    """Seeds the stream that `dropout` and `randperm` draw from on a device."""
    if device.type in KEYED:
        DRAWN.seed, DRAWN.count = seed, 0
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        # torch.manual_seed takes a third of a millisecond to seed devices that are not there.
        torch.default_generator.manual_seed(seed)


class Stream:
    """The draws of a device's default generator from one seed: each block goes on where the last one ended."""

    def __init__(self, device: torch.device, seed: int) -> None:
        """Leaves the default generator as it is."""
        cuda = device.type == "cuda"
        self._default = torch.cuda.default_generators[device.index or 0] if cuda else torch.default_generator
        outer = self._now()
        seed_default(device, seed)
        self._state = self._now()
        self._go_on(outer)

    def _now(self) -> tuple[torch.Tensor, int, int]:
        return self._default.get_state(), DRAWN.seed, DRAWN.count

    def _go_on(self, state: tuple[torch.Tensor, int, int]) -> None:
        default, DRAWN.seed, DRAWN.count = state
        self._default.set_state(default)

    def __enter__(self) -> None:
        self._outer = self._now()
        self._go_on(self._state)

    def __exit__(self, *error: object) -> None:
        self._state = self._now()
        self._go_on(self._outer)


def random_of(random: Callable[[str], int], name: str) -> Callable[[str], int]:
    """Returns the seeds of one of a client's models, by purpose."""
    return random if name == MODEL else lambda purpose: random(f"{name}/{purpose}")
