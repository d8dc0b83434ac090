"""What text says of an axis, and the combinations of several."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.errors import refused

from shoal.study.study import combinations, is_seed, read_study


def columns(*axes: str) -> list[dict[str, str]]:
    return [choice.columns for choice in combinations(axes)]


def test_the_last_key_changes_fastest() -> None:
    found = combinations(["a=1,2", "b.c=x, y"])
    assert [choice.columns for choice in found] == [
        {"a": "1", "b.c": "x"}, {"a": "1", "b.c": "y"}, {"a": "2", "b.c": "x"}, {"a": "2", "b.c": "y"},
    ]  # fmt: skip
    assert found[1].overrides == ("a=1", "b.c=y")
    # Brackets enclose commas.
    assert columns("partition.clients=[3,3],[4,2]") == [{"partition.clients": "[3,3]"}, {"partition.clients": "[4,2]"}]


def test_options_of_one_method_are_no_options_of_others() -> None:
    found = combinations(["algorithm=fedgta{eps:0.5,0.9,orders:3},my.py:Mine,fedavg"])
    assert [choice.columns for choice in found] == [
        {"algorithm": "fedgta", "algorithm.eps": "0.5", "algorithm.orders": "3"},
        {"algorithm": "fedgta", "algorithm.eps": "0.9", "algorithm.orders": "3"},
        {"algorithm": "my.py:Mine"},
        {"algorithm": "fedavg"},
    ]
    overrides = [yaml.safe_load(choice.overrides[0].partition("=")[2]) for choice in found]
    assert overrides[1] == {"name": "fedgta", "eps": 0.9, "orders": 3}
    assert overrides[2:] == ["my.py:Mine", "fedavg"]


def test_joint_keys_vary_in_pairs() -> None:
    found = combinations(["partition.file+data.split_file=a.npy+s.npy,b.npy+t.npy"])
    assert [choice.overrides for choice in found] == [
        ("partition.file=a.npy", "data.split_file=s.npy"),
        ("partition.file=b.npy", "data.split_file=t.npy"),
    ]


def test_seeds_are_of_training_alone_and_draws_of_all() -> None:
    assert columns("seeds=3") == [{"seed": "0"}, {"seed": "1"}, {"seed": "2"}]
    draws = ("seed", "partition.seed", "data.split_seed")
    assert columns("draws=2") == [dict.fromkeys(draws, str(number)) for number in range(2)]
    assert combinations(["draws=2"])[1].overrides == tuple(f"{key}=1" for key in draws)
    assert [key for key in (*draws, "data.seeds", "algorithm.eps") if is_seed(key)] == list(draws)


@pytest.mark.parametrize(
    ("axes", "place", "says"),
    [
        *(([text], text, "has the form key.sub=a,b,c") for text in ("a=", "a", "=1", "a b=1")),
        *(([text], text, "is a number of repetitions") for text in ("seeds=x", "seeds=0", "draws=1001")),
        (["a=1", "b=2", "a=3"], "a", "is in two axes"),
        (["seeds=2", "seed=3"], "seed", "is in two axes"),
        (["a+b=1+2,3"], "a+b=1+2,3", "3 has 1 values for 2 keys"),
        (["algorithm=fedgta{eps:1"], "fedgta{eps:1", "the brace is not closed"),
        (["algorithm=fedgta{0.5}"], "fedgta{0.5}", "name{option:a,b}"),
    ],
)
def test_combinations_wrong_axis_is_refused(axes: list[str], place: str, says: str) -> None:
    with refused(place, says=says):
        combinations(axes)


def test_a_grid_of_too_many_runs_is_not_written_out() -> None:
    values = ",".join(map(str, range(1000)))
    assert len(combinations([f"seed={values}"])) == 1000
    with refused(f"rounds={values}"[:60] + "…"):
        combinations([f"seed={values}", f"rounds={values}", f"train.epochs={values}", f"data.split_seed={values}"])


def written(folder: Path, **plain: object) -> str:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(plain, sort_keys=False))
    return str(path)


def test_a_study_in_a_file(tmp_path: Path) -> None:
    axes = {"algorithm": ["fedavg", "fedgta{eps:0.5,0.9}"], "seeds": 2, "data.row_normalize": [True, False]}
    choose = {"key": "algorithm.eps", "seeds": 1, "by": "trained"}
    file = written(tmp_path, config="c.yaml", axes=axes, choose=choose)
    study = read_study(file, ["rounds=3"], None, 2, "deployed")
    assert study.config == str(tmp_path / "c.yaml")
    of_file = ("algorithm=fedavg,fedgta{eps:0.5,0.9}", "seeds=2", "data.row_normalize=true,false")
    assert study.axes == (*of_file, "rounds=3")
    assert (study.choose, study.choose_seeds, study.choose_by) == ("algorithm.eps", 1, "trained")
    assert len(study.choices) == 12
    asked = read_study(file, [], "seed", 2, "deployed")
    assert (asked.choose, asked.choose_seeds, asked.choose_by) == ("seed", 2, "deployed")


def test_study_folder_is_named_after_its_axes(tmp_path: Path) -> None:
    # How many seeds choose is nothing where nothing is chosen.
    studies = ((["a=1"], None, 2), (["a=1", "b=2"], None, 2), (["a=1"], "a", 2), (["a=1"], "a", 3), (["a=1"], None, 3))
    names = {read_study("c.yaml", *study, "deployed").folder(tmp_path, "c") for study in studies}
    assert len(names) == 4
    assert all(name.parent == tmp_path / "sweeps" for name in names)


GOOD = {"config": "c.yaml", "axes": {"a": [1]}}


@pytest.mark.parametrize(
    ("plain", "key"),
    [
        ({**GOOD, "axes": {}}, "axes"),
        ({"axes": {"a": [1]}}, "config"),
        ({**GOOD, "seeds": 3}, "seeds"),
        ({**GOOD, "choose": {"key": "a", "by": "test"}}, "choose.by"),
        ({**GOOD, "axes": {"a": {"b": 1}}}, "axes.a"),
        ({"config": "c.yaml"}, None),
    ],
)
def test_read_study_wrong_file_is_refused(tmp_path: Path, plain: dict[str, Any], key: str | None) -> None:
    file = written(tmp_path, **plain)
    with refused(file, key) if key else refused(file, says="name what varies"):
        read_study(file, [], None, 2, "deployed")


def test_a_chosen_key_is_one_of_the_axes() -> None:
    with refused(says="--choose train.lr: no axis has this key; there are a, seed"):
        assert read_study("c.yaml", ["a=1,2", "seeds=2"], "train.lr", 2, "deployed").choices
