"""FedSage+ in whole rounds against loops over nodes and dense tables in one process that holds all clients."""

from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import Check, Start, Views
from support.plain_fedavg import row_counts
from support.plain_fedgta import DEFAULTS as FEDGTA
from support.plain_fedgta import equations_3_to_5
from support.small_fedsage_plus import DEFAULTS, Person, of_others

from shoal.algorithms.methods.fedsage_plus.generator import fresh_generator
from shoal.algorithms.rng import key
from shoal.engine.rounds.server import Server
from shoal.storage.store.view import View

MODEL = {"name": "sage", "hidden": 7, "head": "linear"}


def initial_of(view: View, round_number: int, options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What a client's generator starts from, by the names of its parameters."""
    seed = key(0, round_number, view.client, "generator")
    module = fresh_generator(view, options["hidden"], options["most_neighbours"], seed).module
    return {name: t.detach().clone() for name, t in module.named_parameters()}


def by_name(server: Server, w: torch.Tensor) -> dict[str, torch.Tensor]:
    module = server._context(1).build("model", 0).module
    torch.nn.utils.vector_to_parameters(w.clone(), module.parameters())
    return {name: t.detach().clone() for name, t in module.named_parameters()}


def flat(p: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.detach().flatten() for t in p.values()])


def counts_of(person: Person, w: dict[str, torch.Tensor], augmented: bool = True) -> np.ndarray:
    with torch.no_grad():
        predicted = person.logits(w, augmented).argmax(1).tolist()
    return row_counts(person.view, predicted)


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    "options",
    [
        {"hidden": 6},
        {"hidden": 5, "hide": 0.3, "most_neighbours": 2, "peers": 2, "sampled_nodes": 4, "across": 3.0},
        {"hidden": 4, "degree": 0.5, "feature": 2.0, "label": 0.0, "across": 0.0},
        {"hidden": 4, "degree": 2.0, "feature": 0.0, "label": 3.0, "peers": 1},
    ],
    ids=["defaults", "few", "alone", "labels"],
)
def test_rounds_written_out(
    start: Start, unequal: dict[str, Any], views: Views, assert_mean_loss: Check, options: dict[str, Any]
) -> None:
    """Two rounds of generators: clients 2 and 3 miss one of them and client 4 both, and catch up when they come."""
    chosen = {**DEFAULTS, **options}
    keys = {"algorithm.name": "fedsage_plus", "train.dropout": 0.0, "model": MODEL}
    keys |= {f"algorithm.{name}": chosen[name] for name in ("generator_rounds", *options)}
    server = start({**{k: v for k, v in unequal.items() if not k.startswith("model.")}, **keys})
    everybody = views(server)
    people = {i: Person(view, chosen, 2) for i, view in enumerate(everybody)}
    w, generated = by_name(server, server._initial), 0
    deployed = dict.fromkeys(people, w)
    for number in range(1, server.plan.rounds + 1):
        line, cohort = server.round(), list(server.cohort(number))
        for i in cohort:
            if not people[i].p:
                people[i].meet(number, initial_of(everybody[i], number, chosen))
        losses = {}
        if number <= 2:
            judged = of_others(people, cohort, number) if chosen["across"] else {}
            for i in cohort:
                losses[i] = people[i].learn(number, 2, judged.get(i))
                people[i].rounds += 1
            assert (line["bytes_up"], line["bytes_down"]) == bytes_of(people, cohort, chosen)
        else:
            total, count = torch.zeros_like(flat(w)), 0
            for i in cohort:
                if people[i].graph is None:
                    people[i].learn(number, 2 * (2 - people[i].rounds))
                    people[i].repair(number)
                    generated += len(people[i].graph[0]) - everybody[i].nodes  # type: ignore[index]
                own = people[i].train(w, getattr(people[i], "momentum", None))
                losses[i] = people[i].loss
                np.testing.assert_array_equal(server.state.scores["trained"][i], counts_of(people[i], own))
                n = everybody[i].nodes * (len(everybody[i].train) > 0)
                total, count = total + n * flat(own), count + n
            w = by_name(server, total / count) if count else w
            size = 4 * len(flat(w))
            assert (line["bytes_up"], line["bytes_down"]) == (len(cohort) * (size + 4), len(cohort) * size)
        assert_mean_loss(line, losses, everybody)
        torch.testing.assert_close(server.state.server["w"], flat(w), rtol=1e-3, atol=1e-5)
        for i, person in people.items():
            deployed[i] = w if i in cohort else deployed[i]
            np.testing.assert_array_equal(server.state.scores["global"][i], counts_of(person, w, augmented=False))
            np.testing.assert_array_equal(server.state.scores["served"][i], counts_of(person, deployed[i]))
            if person.p:
                kept = server.state.clients[i]
                torch.testing.assert_close(kept["generator"], flat(person.p), rtol=1e-3, atol=1e-5)
                assert ("mended" in kept) == (person.graph is not None)
                assert ("generator.opt.momentum_buffer" in kept) == (person.graph is None)
    assert all(person.graph is not None for person in people.values())
    assert generated > 20


def test_inductive_run_augments_all_nodes_for_scores(start: Start, unequal: dict[str, Any], views: Views) -> None:
    """By the generator that learnt on these; client 5 has none, and is scored on its graph as it is."""
    keys = {"algorithm.name": "fedsage_plus", "algorithm.generator_rounds": 1, "algorithm.hidden": 6, "model": MODEL}
    keys |= {"data.inductive": True, "participation.ratio": 1.0, "rounds": 3}
    without = "participation.trace", "model.name", "model.hidden"
    server = start({k: v for k, v in {**unequal, **keys}.items() if k not in without})
    for _ in range(3):
        server.round()
    w, generated, scores = by_name(server, server.state.server["w"]), 0, server.state.scores
    for i, view in enumerate(views(server)):
        kept, person = server.state.clients[i], Person(view, {**DEFAULTS, "hidden": 6}, 2)
        assert view.nodes > len(view.train)
        if len(view.train):
            names = initial_of(view, 2, person.options)
            parts = kept["generator"].split([t.numel() for t in names.values()])
            person.p = {name: part.view(t.shape) for (name, t), part in zip(names.items(), parts)}
            assert int(kept["mended"]) == key(0, 2, i, "mended")
            person.repair(2)
            generated += len(person.graph[0]) - view.nodes  # type: ignore[index]
        assert ("mended" in kept) == (i != 5)
        np.testing.assert_array_equal(scores["served"][i], counts_of(person, w))
        np.testing.assert_array_equal(scores["global"][i], counts_of(person, w, augmented=False))
    assert generated >= 10
    assert any(not np.array_equal(scores["served"][i], scores["global"][i]) for i in range(5))


def test_fedgta_sketches_predictions_of_augmented_graphs(
    start: Start, unequal: dict[str, Any], views: Views, recorded: Any
) -> None:
    """Labels spread over the graph as it is."""
    keys = {"algorithm.name": "fedsage_plus_fedgta", "algorithm.generator_rounds": 1, "algorithm.hidden": 6}
    keys |= {"model": MODEL, "participation.ratio": 1.0, "rounds": 2}
    without = "participation.trace", "model.name", "model.hidden"
    server = start({k: v for k, v in {**unequal, **keys}.items() if k not in without}, pool=recorded.on)
    for _ in range(2):
        server.round()
    apart = 0
    for i, view in enumerate(views(server)):
        kept, person = server.state.clients[i], Person(view, {**DEFAULTS, "hidden": 6}, 2)
        names = initial_of(view, 1, person.options)
        parts = kept["generator"].split([t.numel() for t in names.values()])
        person.p = {name: part.view(t.shape) for (name, t), part in zip(names.items(), parts)}
        person.repair(2)
        sent = recorded.uploads[i]
        w = by_name(server, sent["w"])
        found = {}
        for augmented in (True, False):
            with torch.no_grad():
                said = person.logits(w, augmented).double().softmax(1).numpy()
            found[augmented] = equations_3_to_5(view, said, FEDGTA)
        np.testing.assert_allclose(sent["h"], found[True][0], rtol=1e-4)
        np.testing.assert_allclose(sent["m"], found[True][1], rtol=1e-3, atol=1e-5)
        apart += not np.allclose(found[False][1], found[True][1], rtol=1e-2, atol=1e-4)
    assert apart > 2


def bytes_of(people: dict[int, Person], cohort: list[int], options: dict[str, Any]) -> tuple[int, int]:
    """Of a round of generators, by the formulas of the docs."""
    if not options["across"]:
        return 0, 0
    k, h = min(options["peers"], len(cohort) - 1), options["hidden"]
    q = h * (h + 1) + options["most_neighbours"] * 5 * (h + 1)
    m = {i: min(options["sampled_nodes"], len(people[i].shown)) for i in cohort}
    up = sum(4 * q + 4 * m[i] * (h + 1) + 4 * k * q for i in cohort)
    down = sum(k * (4 * q + 4 * m[i] * (h + 1) + 4) + 4 * q for i in cohort)
    return up, down
