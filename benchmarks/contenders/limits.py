"""How fast the products of a round are alone, and what the machine does: `limits.py FIELD KERNEL`, a task of each form.

It says one line: floating-point operations and bytes of a round, and the fewest seconds of its products over some
repeats, each on its own; beside them a large product of dense matrices, a copy of 256 MiB, and a dot product of two
vectors that lie in cache.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from bare import clients_of
from bare_models import Client
from bare_weights import aligned
from spmm import in_turns
from task import GraphTask, Rounds, Task, read

REPEATS, LARGE = 5, 2048
MEMORY, CACHED, READS = 2**26, 2**16, 256


def fewest(calls: Sequence[Callable[[], object]]) -> list[float]:
    """The fewest seconds of every call; they take turns."""
    return [min(seconds) for seconds in in_turns(calls, REPEATS)]


def machine() -> dict[str, float]:
    """Operations a second of a large product, bytes a second that a copy reads and writes and a dot product reads."""
    left, right, out = (torch.rand(LARGE, LARGE) for _ in range(3))
    source, to, one, other = torch.ones(MEMORY), torch.ones(MEMORY), torch.ones(CACHED), torch.ones(CACHED)

    def reads() -> None:
        for _ in range(READS):
            torch.dot(one, other)

    product, memory, cached = fewest([lambda: torch.mm(left, right, out=out), lambda: to.copy_(source), reads])
    return {"mm": 2 * LARGE**3 / product, "copy": 8 * MEMORY / memory, "cached": 8 * CACHED * READS / cached}


def dense_products(client: Client) -> Iterator[tuple[int, int, int]]:
    """Rows, inputs and outputs of all dense products of a step."""
    for matrix, width in client.products:
        if matrix.dense is not None:
            n, m = matrix.shape
            yield from ((n, m, width), (m, n, width))
    for rows, inputs, outputs in client.layers:
        yield from ((rows, inputs, outputs), (inputs, rows, outputs), (rows, outputs, inputs))


def of_a_step(by_torch: Client, by_kernel: Client) -> dict[str, float]:
    """Work of a client's step, and seconds of its products."""
    found = dict.fromkeys(("sparse", "bytes", "torch", "kernel", "dense", "dense seconds"), 0.0)
    for (theirs, width), (ours, _) in zip(by_torch.products, by_kernel.products):
        if ours.dense is not None:
            continue
        below, above = (torch.randn(count, width) for count in ours.shape)
        into, back = aligned(*below.shape), aligned(*above.shape)
        calls = [matrix.times for matrix in (theirs, ours)], [matrix.transposed_times for matrix in (theirs, ours)]
        for (first, second), x, out in ((calls[0], above, into), (calls[1], below, back)):
            torch_seconds, kernel_seconds = fewest([lambda: first(x, out), lambda: second(x, out)])  # noqa: B023
            found["torch"] += torch_seconds
            found["kernel"] += kernel_seconds
            found["sparse"] += 2 * ours.entries * width
            found["bytes"] += ours.entries * (8 + 4 * width) + 4 * len(out) * width
    for rows, inputs, outputs in dense_products(by_kernel):
        left, right, product = torch.rand(rows, inputs), torch.rand(inputs, outputs), torch.empty(rows, outputs)
        found["dense seconds"] += fewest([lambda: torch.mm(left, right, out=product)])[0]  # noqa: B023
        found["dense"] += 2 * rows * inputs * outputs
    return found


def main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr
    kind: type[Rounds] = GraphTask if "store" in json.loads(Path(sys.argv[1]).read_text()) else Task
    tasks = [read(path, kind) for path in sys.argv[1:]]
    both = [clients_of(task) for task in tasks]  # type: ignore[arg-type]
    steps = [of_a_step(*pair) for pair in zip(*both)]
    found = {key: tasks[0].steps * sum(step[key] for step in steps) for key in steps[0]} | machine()
    found["limit"] = found["kernel"] + found["dense"] / found["mm"]
    print(json.dumps(found), file=out, flush=True)
