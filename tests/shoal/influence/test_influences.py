"""Tables of influences by hand."""

from pathlib import Path

from shoal.influence.influences import Influence, Influences


def test_class_without_test_items_at_others_has_no_numbers() -> None:
    first = Influence(0, 1, 2, Path("run-0"), [[3, 2], [4, 0]], [[1, 0], [2, 0]])
    second = Influence(1, 1, 2, Path("run-1"), [[4, 0], [3, 0]], [[0, 0], [-3, 0]])
    table = Influences("deployed", 2, ["a", "b"], [first, second]).of_classes()
    assert table.rows[0] == ("a", "7", "-25.00", "-100.00 (client 1)", "+50.00 (client 0)")
    assert table.rows[1] == ("b", "2", "-", "-", "-")
