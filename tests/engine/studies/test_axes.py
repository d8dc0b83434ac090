"""What text says of an axis, and the combinations of several."""

from pathlib import Path

import pytest
import yaml

from shoal.engine.studies.study import combinations, is_seed, read_study, split
from shoal.storage.errors import ShoalError


def columns(*axes: str) -> list[dict[str, str]]:
    return [choice.columns for choice in combinations(axes)]


def test_the_last_key_changes_fastest() -> None:
    found = combinations(["a=1,2", "b.c=x, y"])
    assert [choice.columns for choice in found] == [
        {"a": "1", "b.c": "x"}, {"a": "1", "b.c": "y"}, {"a": "2", "b.c": "x"}, {"a": "2", "b.c": "y"},
    ]  # fmt: skip
    assert found[1].overrides == ("a=1", "b.c=y")


def test_combinations_brackets_enclose_commas() -> None:
    assert columns("partition.clients=[3,3],[4,2]") == [{"partition.clients": "[3,3]"}, {"partition.clients": "[4,2]"}]
    assert split("a,{b:1,2},c") == ["a", "{b:1,2}", "c"]


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
    assert overrides[2:] == [{"name": "my.py:Mine"}, {"name": "fedavg"}]


def test_combinations_joint_keys_vary_in_pairs() -> None:
    found = combinations(["partition.file+data.split_file=a.npy+s.npy,b.npy+t.npy"])
    assert [choice.overrides for choice in found] == [
        ("partition.file=a.npy", "data.split_file=s.npy"),
        ("partition.file=b.npy", "data.split_file=t.npy"),
    ]


def test_seeds_are_of_training_alone_and_draws_of_all() -> None:
    assert columns("seeds=3") == [{"seed": "0"}, {"seed": "1"}, {"seed": "2"}]
    assert columns("draws=2") == [
        {"seed": str(n), "partition.seed": str(n), "data.split_seed": str(n)} for n in range(2)
    ]
    assert combinations(["draws=2"])[1].overrides == ("seed=1", "partition.seed=1", "data.split_seed=1")
    keys = ("seed", "partition.seed", "data.split_seed", "data.seeds", "algorithm.eps")
    assert [is_seed(key) for key in keys] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("axes", "line"),
    [
        (["a="], r"^a=: an axis of a sweep has the form key\.sub=a,b,c$"),
        (["a"], r"^a: an axis of a sweep has the form"),
        (["=1"], r"^=1: an axis of a sweep has the form"),
        (["a b=1"], r"^a b=1: an axis of a sweep has the form"),
        (["a=1", "b=2", "a=3"], r"^a: is in two axes of the sweep; name it once$"),
        (["seeds=2", "seed=3"], r"^seed: is in two axes"),
        (["a+b=1+2,3"], r"^a\+b=1\+2,3: 3 has 1 values for 2 keys; join them by \+$"),
        (["algorithm=fedgta{eps:1"], r"the brace is not closed$"),
        (["algorithm=fedgta{0.5}"], r"options of one method have the form name\{option:a,b\}$"),
        (["seeds=x"], r"^seeds=x: seeds is a number of repetitions, 1 to 1,000$"),
        (["seeds=0"], r"^seeds=0: seeds is a number of repetitions"),
        (["draws=1001"], r"^draws=1001: draws is a number of repetitions"),
    ],
)
def test_combinations_wrong_axis_is_refused(axes: list[str], line: str) -> None:
    with pytest.raises(ShoalError, match=line):
        combinations(axes)


def test_a_grid_of_too_many_runs_is_not_written_out() -> None:
    values = ",".join(map(str, range(1000)))
    assert len(combinations([f"seed={values}"])) == 1000
    with pytest.raises(ShoalError, match=r"^rounds=0,1,2.*…: a sweep has at most 1,000 runs; give fewer values$"):
        combinations([f"seed={values}", f"rounds={values}", f"train.epochs={values}", f"data.split_seed={values}"])


def written(folder: Path, **plain: object) -> str:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(plain, sort_keys=False))
    return str(path)


def test_a_study_in_a_file(tmp_path: Path) -> None:
    axes = {"algorithm": ["fedavg", "fedgta{eps:0.5,0.9}"], "seeds": 2, "data.row_normalize": [True, False]}
    choose = {"key": "algorithm.eps", "seeds": 1, "by": "trained"}
    study = read_study(written(tmp_path, config="c.yaml", axes=axes, choose=choose), ["rounds=3"], None, 2, "served")
    assert study.config == str(tmp_path / "c.yaml")
    assert study.axes == (
        "algorithm=fedavg,fedgta{eps:0.5,0.9}", "seeds=2", "data.row_normalize=true,false", "rounds=3",
    )  # fmt: skip
    assert (study.choose, study.choose_seeds, study.choose_by) == ("algorithm.eps", 1, "trained")
    assert len(study.choices) == 12
    asked = read_study(written(tmp_path, config="c.yaml", axes=axes, choose=choose), [], "seed", 2, "served")
    assert (asked.choose, asked.choose_seeds, asked.choose_by) == ("seed", 2, "served")


def test_study_folder_is_named_after_its_axes(tmp_path: Path) -> None:
    names = {
        read_study("c.yaml", axes, choose, seeds, "served").folder(tmp_path, "c")
        for axes, choose, seeds in (
            (["a=1"], None, 2), (["a=1", "b=2"], None, 2), (["a=1"], "a", 2), (["a=1"], "a", 3), (["a=1"], None, 3),
        )
    }  # fmt: skip
    # How many seeds choose is nothing where nothing is chosen.
    assert len(names) == 4
    assert all(name.parent == tmp_path / "sweeps" for name in names)


@pytest.mark.parametrize(
    ("plain", "line"),
    [
        ({"config": "c.yaml", "axes": {}}, r"study\.yaml: axes: "),
        ({"axes": {"a": [1]}}, r"study\.yaml: config: "),
        ({"config": "c.yaml", "axes": {"a": [1]}, "seeds": 3}, r"study\.yaml: seeds: "),
        ({"config": "c.yaml", "axes": {"a": [1]}, "choose": {"key": "a", "by": "test"}}, r"study\.yaml: choose\.by: "),
        ({"config": "c.yaml", "axes": {"a": {"b": 1}}}, r"study\.yaml: axes\.a: "),
        ({"config": "c.yaml"}, r"study\.yaml: name what varies, as in seed=0,1,2"),
    ],
)
def test_read_study_wrong_file_is_refused(tmp_path: Path, plain: dict[str, object], line: str) -> None:
    with pytest.raises(ShoalError, match=line):
        read_study(written(tmp_path, **plain), [], None, 2, "served")


def test_a_chosen_key_is_one_of_the_axes() -> None:
    with pytest.raises(ShoalError, match=r"^--choose train\.lr: no axis has this key; there are a, seed$"):
        assert read_study("c.yaml", ["a=1,2", "seeds=2"], "train.lr", 2, "served").choices
