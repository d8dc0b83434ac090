"""FedProc and FedProto with averaged parameters in whole rounds written out."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Check, Keys, Make, Start
from torch import Tensor, nn

from shoal.algorithms.models.layers.output import Output

Prototypes = dict[int, Tensor]


def pulled(out: Output, y: Tensor, proto: Prototypes, options: Keys, share: float) -> Tensor:
    """FedProto's loss: cross-entropy and the mean square to the class's prototype, of rows that have one."""
    plain = F.cross_entropy(out.logits_NC, y)
    squares = [(z - proto[c]).square().mean() for z, c in zip(out.embedding_NH, y.tolist()) if c in proto]
    return plain + options.get("lam", 1.0) * torch.stack(squares).mean() if squares else plain


def contrasted(out: Output, y: Tensor, proto: Prototypes, options: Keys, share: float) -> Tensor:
    """FedProc's loss: cross-entropy, and -log of the own prototype's share, of rows that have one, from two on."""
    plain, terms = F.cross_entropy(out.logits_NC, y), []
    for z, c in zip(out.embedding_NH, y.tolist()):
        if c in proto and len(proto) > 1:
            cosines = {k: (z @ row) / (z @ z).sqrt() / (row @ row).sqrt() for k, row in proto.items()}
            exps = {k: torch.exp(cosine / options.get("temperature", 1.0)) for k, cosine in cosines.items()}
            terms.append(-torch.log(exps[c] / sum(exps.values())))
    return share * torch.stack(terms).mean() + (1 - share) * plain if terms else plain


@pytest.mark.parametrize(
    ("name", "options", "batch"),
    [
        ("fedproto_averaged", {}, 100),
        ("fedproto_averaged", {"lam": 3.0, "weight": "train"}, 2),
        ("fedproc", {}, 100),
        ("fedproc", {"alpha": 0.6, "temperature": 0.3, "weight": "train"}, 2),
        ("fedproc", {"alpha": 0.4, "schedule": "constant"}, 100),
    ],
)
def test_rounds_written_out(
    start: Start, patchy: Keys, plain_average: Make, assert_averaged: Check, name: str, options: Keys, batch: int
) -> None:
    keys = {**patchy, "model.hidden": 8, "algorithm": {"name": name, **options}}
    server = start({**keys, "train.batch_size": batch})
    plain = plain_average(server, options.get("weight", "nodes"))
    proto: Prototypes = {}
    for number in range(1, 8):
        share = options.get("alpha", 1.0) * (1 if "schedule" in options else 1 - (number - 1) / 7)

        def loss(module: nn.Module, out: Output, y: Tensor, share: float = share) -> Tensor:
            return (contrasted if name == "fedproc" else pulled)(out, y, proto, options, share)

        line, cohort = server.round(), server.cohort(number)
        plain.round(number, cohort, loss, batch)
        p, up, known = len(plain.w), 0, len(proto)
        rows: dict[int, list[np.ndarray]] = {}
        for i in cohort:
            embeddings = plain.clients[i].embeddings()
            up += 4 * (p + 1 + 8 * len(embeddings) + 4)
            for c, found in embeddings.items():
                rows.setdefault(c, []).extend(found)
        proto.update({c: torch.from_numpy(np.mean(found, 0)).float() for c, found in rows.items()})
        down = 4 * p + 4 * (name == "fedproc") + (4 * 8 * known + 1 if number > 1 else 0)
        assert (line["bytes_up"], line["bytes_down"]) == (up, len(cohort) * down)
        assert_averaged(server, plain)
        assert server.state.server["known"].nonzero()[:, 0].tolist() == sorted(proto)
        for c, row in proto.items():
            torch.testing.assert_close(server.state.server["proto"][c], row, rtol=2e-3, atol=1e-5)
