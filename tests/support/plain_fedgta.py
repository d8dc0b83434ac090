"""FedGTA's equations 3 to 5 for one client in NumPy, with the operator written out."""

from dataclasses import asdict

import numpy as np
from support.dense_graphs import smoothing
from support.fixtures import Keys

from shoal.algorithms.methods.fedgta.fedgta import FedGTA
from shoal.storage.shards.view import View

DEFAULTS = asdict(FedGTA())


def equations_3_to_5(view: View, predicted: np.ndarray, options: Keys) -> tuple[float, np.ndarray]:
    """Confidence and moments of a client in float64, from class probabilities `[N, C]`; options as in `DEFAULTS`."""
    a = view.adjacency.to_dense().double().numpy()
    d, operator = a.sum(1) + 1, smoothing(a)
    y0, known = predicted.copy(), np.eye(predicted.shape[1])[view.label[view.train]]
    if options["lp_seed"] == "labels":
        y0[view.train] = known

    def softmax(y: np.ndarray) -> np.ndarray:
        rows = np.exp(y) / np.exp(y).sum(1, keepdims=True)
        rows[view.train] = known
        return rows

    sketch, y, a, orders = [], y0, options["lp_seed_weight"], range(1, options["orders"] + 1)
    for _ in range(options["lp_steps"]):
        y = a * y0 + (1 - a) * operator @ y
        if options["rows"] == "softmax":
            y[view.train] += y0[view.train]
        rows = {"stochastic": y / y.sum(1, keepdims=True), "raw": y, "softmax": softmax(y)}[options["rows"]]
        raw = [np.mean(rows**q, axis=0) for q in orders]
        central = [np.mean((rows - rows.mean(0)) ** q, axis=0) for q in orders]
        sketch.append(np.concatenate({"raw": raw, "central": central, "hybrid": raw + central}[options["moments"]]))
    if options["rows"] == "softmax":
        rows, d = softmax(y / 20), d - 1
    y_log_y = (rows * np.log(np.where(rows > 0, rows, 1))).sum(1)
    h = {
        "paper": d @ (rows.shape[1] / np.e + y_log_y),
        "normalized": d @ (1 + y_log_y / np.log(max(rows.shape[1], 2))),
        "uniform": 1.0,
    }[options["confidence"]]
    counts = len(view.train) > 0
    return max(float(h), 1e-12) if counts else 1e-12, np.concatenate(
        sketch if options["moment_steps"] == "all" else sketch[-1:]
    )
