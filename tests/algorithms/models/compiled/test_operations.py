"""Operations beside the kernels that they call: neither changes how the other computes."""

from typing import Any

import pytest
from numba.core.dispatcher import Dispatcher

from shoal.algorithms.models.compiled import (
    attention_operations,
    hop_operations,
    memory,
    operations,
    projected_losses,
    row_losses,
)
from shoal.algorithms.models.compiled.operations import Code, address_of


def kernels() -> list[tuple[str, Any]]:
    """Functions with arithmetic that operations and losses of rows call, by name."""
    modules = (operations, attention_operations, hop_operations, row_losses, projected_losses)
    named = {name: f for module in modules for name, f in vars(module).items() if isinstance(f, Dispatcher)}
    return [(name, f) for name, f in named.items() if f not in vars(memory).values() and name != "execute"]


@pytest.mark.parametrize(("name", "kernel"), kernels())
def test_a_kernel_says_itself_whether_sums_may_be_reordered(name: str, kernel: Any) -> None:
    """Numba lets a function that says nothing take that over from its caller, and keeps it so in its cache."""
    assert "fastmath" in kernel.targetoptions


def test_every_operation_has_an_address_of_its_own() -> None:
    addresses = [address_of(code) for code in Code]
    assert len(set(addresses)) == len(Code)
    assert all(addresses)
