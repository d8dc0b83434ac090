"""What servers hold of clients that stay away: every method, in rounds of three of ten clients and one of all."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import Keys, Start
from support.methods import GCN, GRAPH_ONLY, NEEDS
from support.same_bits import assert_same_trees
from support.written_rounds import cohorts_of
from torch import Tensor

from shoal.algorithms.losses.prototypes import from_bits
from shoal.algorithms.methods.registry.names import METHODS

# The second and the last cohort have no training node of class 0.
CLIENTS, COHORTS = 10, [[0, 1, 2], [3, 4, 5], range(10), [3, 5, 8]]


class Seen:
    """A round as a pool that keeps what clients send: in this round, and last; means and weights of `Reduce.MEAN`."""

    def __init__(self, pool: Any) -> None:
        self.pool, self.sent, self.last = pool, {}, {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def run_cells(self, cells: Any, shared: Any) -> Iterator[Any]:
        for position, outcome in self.pool.run_cells(cells, shared):
            for i in outcome.ids:
                tree = {name: rows[0] for name, rows in (*outcome.tensors.items(), *outcome.lists.items())}
                for part in outcome.sums.values():
                    weights = {name: torch.as_tensor(w, dtype=torch.float64) for name, w in part.weight.items()}
                    tree |= {name: part.total[name] / w.clamp_min(1e-30) for name, w in weights.items()}
                    tree |= {f"{name} weight": w for name, w in weights.items()}
                for kept in (self.sent, self.last) if tree else ():
                    kept[i] = {**kept.get(i, {}), **tree}
            yield position, outcome


# What an entry of the server's state has to be; None where it only has to move.
Expected = Callable[[str, Seen], Tensor | None]


def last_upload(entry: str, seen: Seen) -> Tensor:
    rows = seen.after[entry]
    return torch.stack([seen.last[i][entry] if i in seen.last else 0 * row for i, row in enumerate(rows)])


def last_of_series(entry: str, seen: Seen) -> Tensor:
    new = [seen.sent[i]["gradient"] if i in seen.sent else row[-1] for i, row in enumerate(seen.before[entry])]
    return torch.cat([marks(entry, seen)[:, :-1], torch.stack(new)[:, None]], dim=1)


def last_prototypes(entry: str, seen: Seen) -> Tensor:
    owner = [torch.full_like(tree["proto.class"], i) for i, tree in sorted(seen.last.items())]
    return torch.cat(owner if entry == "proto.client" else [tree[entry] for _, tree in sorted(seen.last.items())])


def bank_of_all(entry: str, seen: Seen) -> Tensor:
    order = last_prototypes("proto.class", seen).argsort(stable=True)
    return last_prototypes(entry.replace("bank", "proto"), seen)[order]


def bank_of_cohort(entry: str, seen: Seen) -> Tensor:
    """Classes of the cohort are made anew; those of others stay."""
    present = torch.stack([from_bits(tree["present"], 4) for _, tree in sorted(seen.sent.items())])
    rows = {"bank": torch.stack([tree["proto"] for _, tree in sorted(seen.sent.items())])[present]}
    rows["bank.class"] = present.nonzero()[:, 1].int()
    old = ~torch.isin(seen.before.get("bank.class", rows["bank.class"]), rows["bank.class"])
    classes, both = (torch.cat([seen.before.get(e, rows[e])[old], rows[e]]) for e in ("bank.class", entry))
    return both[classes.argsort(stable=True)]


def class_of_cohort(entry: str, seen: Seen) -> Tensor:
    """The mean over those of the cohort that have the class; a class that nobody has stays."""
    count = sum(tree[f"{entry} weight"] for tree in seen.sent.values())
    total = sum(tree[entry] * tree[f"{entry} weight"] for tree in seen.sent.values())
    return torch.where(count > 0, total / count.clamp_min(1), seen.before.get(entry, torch.zeros_like(total)))


def nothing(entry: str, seen: Seen) -> Tensor:
    """An average of what the cohort sent; without an upload it stays."""
    sent = [tree[UPLOADED.get(entry, entry)] for tree in seen.sent.values() if UPLOADED.get(entry, entry) in tree]
    if not sent:
        return seen.before[entry]
    sent_BP, rows = torch.stack(sent).double().flatten(1), seen.after[entry].double()
    shares = torch.linalg.lstsq(sent_BP.T, rows.reshape(-1, sent_BP.shape[1]).T, driver="gelsd").solution.T
    return ((shares / shares.sum(1, keepdim=True)) @ sent_BP).view_as(rows)


def sum_of_all(entry: str, seen: Seen) -> Tensor:
    """Of all that clients ever sent, once each."""
    last = seen.last.values()
    return sum(tree["mean weight"] * (tree["mean"] if entry == "sum" else 1) for tree in last)  # type: ignore[return-value]


def mean_of_variates(entry: str, seen: Seen) -> Tensor:
    variates = [tree["variate"] for tree in seen.clients.values() if "variate" in tree]
    return torch.stack(variates).sum(0) / sum(i.train > 0 for i in seen.infos)


def first_uploads(entry: str, seen: Seen) -> Tensor:
    """Of all that came so far, one behind another: clients come in the order of their numbers, and send it once."""
    sent = [tree[entry] for _, tree in sorted(seen.last.items())]
    return torch.stack(sent) if entry == "counts" else torch.cat(sent)


def first_owners(entry: str, seen: Seen) -> Tensor:
    """Says of every first upload of prototypes who sent it."""
    sent = [(i, len(tree["prototypes"])) for i, tree in sorted(seen.last.items())]
    return torch.tensor([i for i, rows in sent for _ in range(rows)], dtype=torch.int64)


def marks(entry: str, seen: Seen) -> Tensor:
    """Of a client that stays away it is as it was."""
    new, old = seen.after[entry], seen.before.get(entry)
    if old is not None:
        new = new.clone()
        absent = [i for i in range(CLIENTS) if i not in seen.cohort]
        new[absent] = old[absent]
    return new


def cohort(entry: str, seen: Seen) -> Tensor:
    return torch.tensor([i in seen.cohort for i in range(CLIENTS)])


def decays(entry: str, seen: Seen) -> None:
    """The past of all, of which every cohort leaves less; of a single client nothing."""


def fixed(entry: str, seen: Seen) -> Tensor:
    return seen.before.get(entry, seen.after[entry])


UPLOADED = {"warm": "w"}
MEAN, PROTO = {"w": nothing}, {"proto": class_of_cohort, "known": decays}
GTA, TRAINED = {"warm": nothing, "met": marks}, {"generator": decays, "generator.*": decays, "known": decays}
# Beside the method, options that make what it holds plain to see.
HELD: dict[str, tuple[dict[str, Expected], Keys]] = {
    **dict.fromkeys(("local", "global"), ({}, {})),
    **dict.fromkeys(("fedavg", "fedprox", "moon", "lg_fedavg", "fml", "fedgkc", "fedgl", "fgssl"), (MEAN, {})),
    "fedgcn": (MEAN, {"hops": 0}),
    **dict.fromkeys(("fedstar", "fedgl_moon", "fedsage_plus", "fedsage_plus_moon"), (MEAN, {})),
    **dict.fromkeys(("fedgta", "fedgl_fedgta", "fedsage_plus_fedgta"), (GTA, {})),
    "fedopt": ({"w": decays, "m": decays, "v": decays}, {}),
    "scaffold": ({"w": nothing, "c": mean_of_variates}, {}),
    **dict.fromkeys(("feddc", "fedgl_feddc", "fedsage_plus_feddc"), ({"w": nothing, "g": nothing}, {})),
    "fpl": ({**MEAN, "bank": bank_of_cohort, "bank.class": bank_of_cohort}, {"cluster_from": 100}),
    **dict.fromkeys(("fedproc", "fedproto_averaged"), ({**MEAN, **PROTO}, {})),
    "fednh": ({**MEAN, "classes": decays}, {}),
    "fedgen": ({**MEAN, **TRAINED}, {}),
    **dict.fromkeys(("fedproto", "feddistill"), (PROTO, {})),
    "fedtgp": ({"proto": decays, **TRAINED}, {}),
    "fedtad": ({"w": decays, "w.*": decays, **TRAINED}, {}),
    "s2fgl": ({**MEAN, "proto": decays, "known": decays}, {}),
    "fedlog": ({**MEAN, "norms": nothing, "seed": fixed, "proto": decays, "known": decays}, {}),
    "fedgm": (
        {"w": decays, "nodes": decays, "nodes.*": decays, "met": marks}
        | dict.fromkeys(("edges", "counts"), first_uploads),
        {},
    ),
    "feddep": (
        {**MEAN, "fusion": nothing, "encoder": fixed, "met": marks}
        | {"prototypes": first_uploads, "owners": first_owners},
        {},
    ),
    "fedspray": ({**MEAN, "proto": decays, "known": decays}, {}),
    "fedpg": (
        {**TRAINED, "anchor": decays, "fresh": cohort, **dict.fromkeys(("proto", "present", "counts"), last_upload)}, {}
    ),
    "fggp": (
        {**MEAN, "generator": nothing, **dict.fromkeys(("proto", "proto.class", "proto.client"), last_prototypes)}
        | {"bank": bank_of_all, "bank.class": bank_of_all},
        {"cluster": "none"},
    ),
    "fedkd": ({"w": decays, "change.*": decays, "current": cohort}, {}),
    "gcfl_plus": ({"models": decays, "cluster": marks, "norms": last_of_series, "known": marks}, {}),
    "adafgl": ({**MEAN, "switched": marks}, {}),
    "fediih": (dict.fromkeys(("initial", "met"), fixed) | {"met": marks}, {}),
    "fedpub": (dict.fromkeys(("initial", "met", "proxy"), fixed) | {"met": marks}, {}),
    "fedgpl": ({"gnn": decays, "gnn.*": decays, "theta": nothing}, {}),
    "class_means": ({"sum": sum_of_all, "count": sum_of_all, "met": marks, "sent": marks, "version": decays}, {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """Keys of a config for rounds of `COHORTS`, evaluated after the last one alone."""
    folder = tmp_path_factory.mktemp("ten")
    skewed = {"partition.method": "dirichlet", "partition.alpha": 0.3}
    parts = {**skewed, "partition.clients": CLIENTS, "data.store": str(folder / "store")}
    rounds = {**cohorts_of(folder, COHORTS, CLIENTS), "evaluation.every": len(COHORTS)}
    return {**parts, **rounds, "engine.cell_size": 1, "train.epochs": 1}


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("name", METHODS)
def test_what_is_held_of_absent_clients(start: Start, ten: Keys, graph_task: Keys, name: str) -> None:
    options, model = NEEDS.get(name, ({}, GCN))
    held, more = HELD[name]
    graphs = {key: graph_task[key] for key in ("task", "data.path")} if name in GRAPH_ONLY else {}
    keys = {**ten, **graphs, "data.store": f"{ten['data.store']} {len(graphs)}"}
    if name == "global":
        del keys["participation.trace"]
    server = start({**keys, "model": model, "algorithm": {"name": name, **options, **more}}, pool=Seen)
    seen = server._pool
    seen.infos = server.infos
    for number, _ in enumerate(COHORTS, 1):
        state, seen.sent = server.state, {}
        seen.before = {entry: t.clone() for entry, t in state.server.items()}
        server.round()
        seen.after, seen.clients, seen.cohort = server.state.server, server.state.clients, server.cohort(number)
        for entry, t in seen.after.items():
            expected = held[entry if entry in held else f"{entry.split('.')[0]}.*"](entry, seen)
            if expected is not None:
                np.testing.assert_allclose(t.double(), expected.double(), rtol=1e-4, atol=1e-5, err_msg=entry)
        for kept, was in ((server.state.clients, state.clients), (server.state.inboxes, state.inboxes)):
            away = [i for i in was if i not in seen.cohort]
            assert_same_trees({i: was[i] for i in away}, {i: kept[i] for i in away})
