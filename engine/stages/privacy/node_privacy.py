"""Differential privacy of nodes: each training row of the hops counts up to a clip, and every step has noise.

Clients add the noise, in each step of `shoal.algorithms.training.clipped_rows`, so that the server, and clients that
receive the model, see one node of another client up to epsilon. Two graphs of a client are neighbours if they differ in
features, label and edges of one node, and no node of either has more than D edges (Daigavane et al., Node-level
differentially private graph neural networks, 2021, bound rows in this way; they remove a node).
"""

from collections.abc import Sequence

import numpy as np

from shoal.algorithms.base import Algorithm, trains_plainly
from shoal.algorithms.methods.registry.names import AVERAGE_ONE_MODEL, TO_COMPARE
from shoal.algorithms.models.names import READ_HOPS
from shoal.engine.config.config import Config
from shoal.engine.sections.sections import options_of
from shoal.engine.stages.privacy.accounting import epsilon_after, noise_of, require_noise
from shoal.engine.stages.privacy.section import PRIVACY
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import Store

DEGREE = "propagation.max_degree"


def moved_by(degree: int, hops: int, r: float) -> int:
    """Counts the clips by which one node moves the sum of clipped gradients at most.

    Its own row, and the rows near it in either graph, change by two clips. Near are the d (d - 1)^(k-1) nodes at each
    distance k up to `hops`; where what a node sends is divided by its degree (r above 0), one step further.
    """
    reach = hops + (hops > 0 and r > 0)
    return 2 + 4 * sum(degree * (degree - 1) ** k for k in range(reach))


def require_bounded(config: Config, method: Algorithm) -> None:
    """Raises a ShoalError, which names the key: noise is not given once, or no bound of a node is known."""
    options, name = PRIVACY.of(config), config.algorithm.name
    if options.unit != "node":
        return
    require_noise(options)
    hops = any(model.name in READ_HOPS for model in config.models()) and config.propagation.hops > 0
    for place, bounded, why in (
        ("task", config.task == "node", f"a {config.task} is no node; take task: node"),
        (
            "model",
            all(model.name in (*READ_HOPS, "mlp") for model in config.models()),
            f"rows must be read one by one; take one of mlp, {', '.join(READ_HOPS)}",
        ),
        (
            "algorithm.name",
            name in AVERAGE_ONE_MODEL and trains_plainly(method),
            f"{name} trains, or sends, with more than clipped rows; take {TO_COMPARE[-1]}",
        ),
        ("train.batch_size", config.train.batch_size is None, "all rows are read in every step; take null"),
        ("engine.trainer", config.engine.trainer in ("auto", "autograd"), "rows are clipped by autograd; take auto"),
        ("participation.selection", options_of(config, "selection") is None, "losses choose clients; take random"),
        (
            "propagation.relations",
            not config.propagation.relations,
            "no bound is known of means a relation; set false",
        ),
        (DEGREE, not hops or config.propagation.max_degree is not None, "a node reaches any row; set a small number"),
    ):
        if not bounded:
            raise ShoalError(place, f"has no bound with privacy.unit=node: {why}")
    noise_of_node(config)


def require_small_delta(config: Config, nodes: Sequence[int] | np.ndarray) -> None:
    """Raises a ShoalError if delta is 1 / n or more, n the nodes of the largest client; `nodes` are by client.

    To publish one node of n at random has that delta, with epsilon 0.
    """
    delta, largest = PRIVACY.of(config).delta, int(np.argmax(nodes))
    if PRIVACY.of(config).unit == "node" and delta * nodes[largest] >= 1:
        raise ShoalError(
            "privacy.delta",
            f"{delta:g} lets client {largest} publish one of its {nodes[largest]} nodes; take less than "
            f"1/{nodes[largest]}",
        )


def clipped_rows_of(config: Config, store: Store) -> tuple[float | None, float] | None:
    """Returns the clip of gradients of training rows, and the noise of a step, where privacy is of nodes; else None.

    Raises ShoalError: as `require_small_delta` and `noise_of_node`.
    """
    if PRIVACY.of(config).unit != "node":
        return None
    require_small_delta(config, store.manifest.clients.count("nodes"))
    return PRIVACY.of(config).clip, noise_of_node(config)


def _clips_moved(config: Config) -> int:
    reads = any(model.name in READ_HOPS for model in config.models())
    hops = config.propagation.hops if reads else 0
    return moved_by(config.propagation.max_degree or 0, hops, config.propagation.r)


def noise_of_node(config: Config) -> float:
    """Computes z, as it is given, or the least for epsilon with a client in every round; raises as `noise_of`."""
    noise = noise_of(PRIVACY.of(config), 1, 1, config.rounds * config.train.epochs)
    return noise if PRIVACY.of(config).noise is not None else noise * _clips_moved(config) / 2


def epsilon_of_node(config: Config, rounds: int) -> float:
    """Computes epsilon after a client took part in so many rounds; raises as `epsilon_after`."""
    noise = 2 * noise_of_node(config) / _clips_moved(config)
    return epsilon_after(noise, PRIVACY.of(config).delta, 1, 1, rounds * config.train.epochs)


def bound_of_node(config: Config, rounds: int) -> str:
    """Describes what hides a node, and epsilon after so many rounds with its unit; raises as `epsilon_after`."""
    options, most = PRIVACY.of(config), config.propagation.max_degree
    among = "" if most is None else f", among graphs of degree {most}"
    return (
        f"epsilon {epsilon_of_node(config, rounds):.3g} of one node of a client (features, label and edges "
        f"replaced{among}), delta {options.delta:g}; noise {noise_of_node(config):.4g}, clip {options.clip}"
    )
