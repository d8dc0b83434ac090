"""The prototypes that train the anchors of a level."""

import torch

from shoal.algorithms.methods.fedpg.server_targets import draw_queries


def test_draw_queries_has_own_level_first() -> None:
    generator = torch.Generator().manual_seed(0)
    proto = torch.randn(6, 3, 4, 5, generator=generator)
    present = torch.rand(6, 3, 4, generator=generator) < 0.6
    present[:, 2] = False
    present[:, 1, 3] = False
    proto[~present] = float("nan")
    known = present.any(0)
    queries = draw_queries(proto, present, known, 0.5, generator)
    assert [q.level for q in queries] == [0, 1]
    for q in queries:
        own = int(present[:, q.level].sum())
        assert (q.own, len(q.class_Q), len(q.proto_QH)) == (own, own + own // 2, own + own // 2)
        assert torch.equal(q.proto_QH[:own], proto[:, q.level][present[:, q.level]])
        drawn = set()
        for row, c in zip(q.proto_QH[own:], q.class_Q[own:].tolist()):
            (place,) = (proto == row).all(-1).nonzero().tolist()
            assert place[1] != q.level
            assert place[2] == c
            assert known[q.level, c]
            drawn.add(tuple(place))
        assert len(drawn) == own // 2


def test_none_of_the_others() -> None:
    present = torch.ones(2, 3, 4, dtype=torch.bool)
    queries = draw_queries(torch.randn(2, 3, 4, 5), present, present[0], 0.0, torch.Generator())
    assert [len(q.class_Q) for q in queries] == [8, 8, 8]
    nobody = torch.zeros_like(present)
    assert draw_queries(torch.randn(2, 3, 4, 5), nobody, nobody[0], 0.5, torch.Generator()) == []


def test_a_level_without_uploads_does_not_end_the_others() -> None:
    present = torch.ones(2, 3, 4, dtype=torch.bool)
    present[:, 1] = False
    queries = draw_queries(torch.randn(2, 3, 4, 5), present, torch.ones(3, 4, dtype=torch.bool), 1.0, torch.Generator())
    assert [(q.level, q.own, len(q.class_Q)) for q in queries] == [(0, 8, 16), (2, 8, 16)]
