"""Tables of influences by hand."""

from pathlib import Path

import numpy as np

from shoal.influence.influence_page import influence_sections
from shoal.influence.influences import Influence, Influences


def test_class_without_test_items_at_others_has_no_numbers() -> None:
    first = Influence(0, 1, 2, Path("run-0"), [[3, 2], [4, 0]], [[1, 0], [2, 0]])
    second = Influence(1, 1, 2, Path("run-1"), [[4, 0], [3, 0]], [[0, 0], [-3, 0]])
    table = Influences("deployed", 2, ["a", "b"], [first, second]).of_classes()
    assert table.rows[0] == ("a", "7", "-25", "-100 (client 1)", "+50 (client 0)")
    assert table.rows[1] == ("b", "2", "-", "-", "-")


def made(*gains_on_others: int, items: int = 400) -> Influences:
    """Influences of clients on one class, by items of all others that only the run with them predicts right."""
    rows = [
        Influence(i, 1, 2, Path(f"run-{i}"), [[0], [items]], [[0], [gain]]) for i, gain in enumerate(gains_on_others)
    ]
    return Influences("deployed", 2, ["a"], rows)


def test_points_have_no_digit_below_what_one_test_item_changes() -> None:
    # Of 400 items one is 0.25 points, of 80 items 1.25, of 20,000 items 0.005.
    assert [row[4] for row in made(3, 0, -1).table().rows] == ["+0.8", "0", "-0.2"]
    assert [row[4] for row in made(3, 0, -1, items=80).table().rows] == ["+4", "0", "-1"]
    assert [row[4] for row in made(3, 0, -1, items=20_000).table().rows] == ["+0.01", "0", "-0.01"]
    # What a program reads has two decimals of everything.
    assert [row[4] for row in made(3, 0, -1).table(by_class=True).rows] == ["+0.75", "+0.00", "-0.25"]


def test_an_end_that_several_clients_share_names_none_of_them() -> None:
    assert made(0, 4, 0).of_classes().rows[0][3:] == ("0 (2 clients)", "+1.0 (client 1)")


def test_the_finding_names_who_helps_and_who_harms() -> None:
    assert (
        made(-2, 4, 0).finding
        == "Client 1 helps all others most (+1.0 points), client 0 harms all others most (-0.5 points)"
    )
    assert made(0, 4).finding == "Client 1 helps all others most (+1.0 points)"
    assert made(0, 0).finding == "No client changes the accuracy of all others"
    assert made(0, items=0).finding == ""


def test_the_figure_has_clients_by_number_and_a_colour_for_each_sign(tmp_path: Path) -> None:
    """Clients 7, 2 and 40 of a run: the most useful is the last in the order of numbers."""
    rows = [
        Influence(client, 1, 2, tmp_path, [[0, 0], [100, 50]], [[0, 0], [gain, -gain]])
        for client, gain in ((7, -10), (2, 0), (40, 30))
    ]
    Influences("deployed", 2, ["a", "b"], rows).write(tmp_path)
    (drawing,) = influence_sections(tmp_path)[0].drawings
    axes, bar = drawing.drawn.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "7", "40"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert bar.get_ylabel() == "points"
    (image,) = axes.images
    red, _, blue, _ = image.to_rgba(image.get_array()).transpose(2, 0, 1)
    points = [[0, -10, 30], [0, 20, -60]]
    assert np.sign(blue - red).tolist() == np.sign(points).tolist()
    assert {text.get_position(): text.get_text() for text in axes.texts} == {
        (c, r): f"{points[r][c]:+}" for r in (0, 1) for c in (1, 2)
    }
    # Colours of cells are pictures, as those of the bar are, which a dark page changes alike.
    assert drawing.svg.count("<image") == 2
