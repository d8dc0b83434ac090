"""Homomorphic sums: clients encrypt their numbers, the server adds ciphertexts, and a key holder reads the sum alone.

Fan and Vercauteren, Somewhat practical fully homomorphic encryption, IACR ePrint 2012/144 (BFV), as the package TenSEAL
computes it: sums of numbers mod t are exact, so that no bit depends on keys, hosts or the order. `DEGREE` numbers are a
ciphertext, and `PRIMES` of together 109 bits give it 128 bits of security (HomomorphicEncryption.org, 2018).

Simulated is the key holder: an object of the server's process, which decrypts sums over enough clients alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from shoal.engine.stages.secure.secure import Secure
from shoal.storage.errors import ShoalError

DEGREE, PRIMES = 4096, (40, 40, 29)
# t is a prime that is 1 mod 2 `DEGREE`, below the 80 bits of a ciphertext's modulus by more than noise takes.
MODULUS = 2**60 - 2**14 + 1


def require_tenseal() -> Any:
    """Imports the package tenseal; raises a ShoalError if it is not installed."""
    try:
        import tenseal
    except ImportError:
        raise ShoalError("secure.kind", "needs the package tenseal; pip install 'shoal[homomorphic]'") from None
    return tenseal


class KeyHolder:
    """The holder of the secret key; `public` is the key that clients encrypt with."""

    def __init__(self) -> None:
        """Draws keys, new ones in every process; raises as `require_tenseal` does."""
        ts = require_tenseal()
        self._context = ts.context(
            ts.SCHEME_TYPE.BFV, DEGREE, plain_modulus=MODULUS, coeff_mod_bit_sizes=list(PRIMES), n_threads=1
        )
        self.public: bytes = self._context.serialize(save_secret_key=False, save_galois_keys=False)

    def decrypt(self, ciphertexts: Tensor) -> Tensor:
        """Decrypts the numbers, int64 `[n]`; raises a ShoalError if the ciphertexts are damaged."""
        return torch.tensor(_open(self._context, ciphertexts).decrypt(), dtype=torch.int64)


@dataclass(frozen=True)
class Homomorphic(Secure):
    """A way to hide numbers by encryption; see the module. Its `holder` stays in the process that made it."""

    public: bytes
    holder: KeyHolder | None = field(compare=False)
    # The reach is half of the numbers below t / 2, in size: a damaged ciphertext holds some of the others.
    reach: ClassVar[int] = 58

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the holder out of what goes to another process."""
        return {**self.__dict__, "holder": None}

    def hide(self, client: int, entry: str, numbers: Tensor) -> Tensor:
        ts, context = require_tenseal(), _public(self.public)
        # TenSEAL writes protobuf: messages one behind another are one message with the ciphertexts of all.
        parts = (ts.bfv_vector(context, part.tolist()).serialize() for part in numbers.split(DEGREE))
        return _tensor(b"".join(parts))

    def add(self, first: Tensor, second: Tensor) -> Tensor:
        context = _public(self.public)
        return _tensor(_open(context, first).add_(_open(context, second)).serialize())

    def reveal(self, entry: str, total: Tensor, answered: Sequence[int]) -> Tensor:
        assert self.holder is not None
        numbers = self.holder.decrypt(total)
        if bool((numbers.abs() >= 2**self.reach).any()):
            raise _damage_error(f"the sum of {entry!r}")
        return numbers


@lru_cache(maxsize=1)
def _public(key: bytes) -> Any:
    return require_tenseal().context_from(key, n_threads=1)


def _tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))


def _open(context: Any, ciphertexts: Tensor) -> Any:
    try:
        return require_tenseal().bfv_vector_from(context, ciphertexts.numpy().tobytes())
    except ValueError:
        raise _damage_error("what a client sent") from None


def _damage_error(what: str) -> ShoalError:
    return ShoalError("secure.kind", f"{what} is no ciphertext of this run, or was changed on its way; run it again")
