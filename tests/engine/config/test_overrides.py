"""A word for a section and its options: in any order, from any source, for every section that has a short form."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf
from support.errors import refused
from support.needs import has_keys, has_schedules, needs

import shoal
from shoal.engine.config import config_text
from shoal.engine.config.config import Config, _content, _lay_over, _resolve, config_from, load_config, sections
from shoal.engine.config.config_text import with_seal
from shoal.engine.config.overrides import override_of, with_long_forms, word_key
from shoal.storage.errors import ShoalError
from shoal.study.study import Study

PLAIN: dict[str, Any] = {"name": "words", "data": {"dataset": "sbm"}, "algorithm": "fedavg"}
# A word for every section with a short form, and an option of it, with a value that is no default.
FORMS: dict[str, tuple[str, str, Any]] = {
    "algorithm": ("fedprox", "mu", 0.25),
    "model": ("gcn", "hidden", 24),
    "attack": ("sign_flip", "share", 0.4),
    "aggregation": ("trimmed", "share", 0.3),
    "secure": ("masks", "threshold", 0.9),
    "target": ("regression", "scale", "client"),
    "schedule": ("fedbuff", "buffer", 3),
    "partition": ("louvain", "resolution", 2.0),
    "data.features": ("random", "width", 16),
    "participation.availability": ("periodic", "period", 4),
    "train.schedule": ("LinearLR", "total_iters", 3),
}
FORMS = {section: form for section, form in FORMS.items() if has_keys(section) and has_schedules(form[0])}


@pytest.fixture(autouse=True)
def _unannounced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_text, "_announced", set())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "config.yaml", PLAIN)


def written(path: Path, plain: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(plain))
    return path


def with_value(key: str, value: Any) -> dict[str, Any]:
    """Copies the plain config, with a value at a dotted key."""
    plain = yaml.safe_load(yaml.safe_dump(PLAIN))
    *above, last = key.split(".")
    holder = plain
    for name in above:
        holder = holder.setdefault(name, {})
    holder[last] = value
    return plain


@needs("asynchronous")
def test_every_section_with_a_short_form_has_a_case() -> None:
    assert {key for key, cls in sections().items() if word_key(cls)} - {"callbacks", "stages"} == set(FORMS)
    for key in FORMS:
        assert word_key(sections()[key]) in ("name", "kind", "method")


@pytest.mark.parametrize("section", FORMS)
def test_word_and_option_hold_in_any_order_from_any_source(tmp_path: Path, file: Path, section: str) -> None:
    word, option, value = FORMS[section]
    short, key = word_key(sections()[section]), f"{section}.{option}"
    right = config_from(with_value(section, {short: word, option: value}))
    assert right != config_from(with_value(section, word)), "the option has an effect"
    for pair in itertools.permutations([f"{section}={word}", f"{key}={value}"]):
        assert load_config(file, pair) == right
    for values in itertools.permutations([(section, word), (key, value)]):
        assert shoal.load_config(file, **dict(values)) == right
        assert shoal.load_config(load_config(file), **dict(values)) == right
        assert config_from(PLAIN, dict(values)) == right
    # The word in the file, the option beside it; and the other way.
    by_word = written(tmp_path / "word.yaml", with_value(section, word))
    assert load_config(by_word, [f"{key}={value}"]) == shoal.load_config(by_word, **{key: value}) == right
    assert load_config(file, [f"{section}={{{short}: {word}, {option}: {value}}}"]) == right
    # Of one key, the last value holds, and a mapping is not before its own keys.
    assert load_config(file, [f"{section}={word}", f"{key}=7", f"{key}={value}"]) == right


@pytest.mark.parametrize("section", FORMS)
def test_options_of_a_word_are_axes_of_a_sweep(file: Path, section: str) -> None:
    word, option, value = FORMS[section]
    right = config_from(with_value(section, {word_key(sections()[section]): word, option: value}))
    for axes in itertools.permutations([f"{section}={word}", f"{key_of(section)}={value}"]):
        assert Study(str(file), axes).configs == [right]
    assert Study(str(file), (f"{section}={word}{{{option}:{value}}}",)).configs == [right]


def key_of(section: str) -> str:
    return f"{section}.{FORMS[section][1]}"


@needs("hostile")
def test_sweep_over_kinds_leaves_the_option_out_where_it_has_no_effect(file: Path) -> None:
    study = Study(str(file), ("attack.share=0.3", "attack=none,sign_flip,scaled"))
    assert [(config.attack.kind, config.attack.share) for config in study.configs] == [
        ("none", 0.2),
        ("sign_flip", 0.3),
        ("scaled", 0.3),
    ]
    # A run in a process of its own has the same config, of its own words.
    for choice, config in zip(study.choices, study.configs, strict=True):
        assert load_config(file, study.alone(choice)) == config


OF_FILE: dict[str, tuple[dict[str, Any], str, list[str], dict[str, Any]]] = {
    "attack": ({"kind": "backdoor", "share": 0.4, "target": 2}, "sign_flip", ["target"], {"share": 0.4}),
    "aggregation": ({"kind": "norm_bound", "bound": 3.0}, "trimmed", ["bound"], {}),
    "secure": ({"kind": "masks", "threshold": 0.9}, "none", ["threshold"], {}),
    "schedule": ({"name": "fedbuff", "buffer": 3, "concurrency": 4}, "fedasync", ["buffer"], {"concurrency": 4}),
    "partition": ({"method": "louvain", "clients": 4, "resolution": 2.0}, "metis", ["resolution"], {"clients": 4}),
    "data.features": ({"kind": "random", "width": 16, "seed": 3}, "degree", ["seed"], {"width": 16}),
    "participation.availability": (
        {"kind": "weibull", "shape": 2.0, "period": 4},
        "periodic",
        ["shape"],
        {"period": 4},
    ),
    "algorithm": ({"name": "fedprox", "mu": 0.5}, "fedavg", ["mu"], {}),
    "model": ({"name": "gcn", "hidden": 24}, "sgc", ["hidden"], {}),
    "train.schedule": (
        {"name": "StepLR", "step_size": 5, "gamma": 0.5},
        "ExponentialLR",
        ["step_size"],
        {"gamma": 0.9},
    ),
}
OF_FILE = {section: form for section, form in OF_FILE.items() if has_keys(section) and has_schedules(form[1])}


@pytest.mark.parametrize("source", ["command", "program", "run"])
@pytest.mark.parametrize("section", OF_FILE)
def test_options_of_the_file_that_go_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], section: str, source: str
) -> None:
    options, word, gone, stay = OF_FILE[section]
    file = written(tmp_path / "config.yaml", with_value(section, options))
    more = [f"{section}.gamma=0.9"] if section == "train.schedule" else []
    if source == "run":
        # A run folder has every key, with its default.
        (tmp_path / "run").mkdir()
        kept = with_seal(yaml.safe_dump(load_config(file).plain()))
        (tmp_path / "run" / "config.yaml").write_text(kept)
    if source == "program":
        config = shoal.load_config(file, **{section: word}, **({"train.schedule.gamma": 0.9} if more else {}))
    else:
        config = load_config(file if source == "command" else tmp_path / "run", [f"{section}={word}", *more])
    short = word_key(sections()[section])
    assert config == config_from(with_value(section, {short: word, **stay}))
    said = capsys.readouterr().err.splitlines()
    assert sorted(line.split()[1] for line in said) == sorted(f"{section}.{name}" for name in gone)
    assert all(line.endswith("it is left out") for line in said)


@needs("hostile")
def test_a_run_alone_has_no_option_without_effect(file: Path) -> None:
    study = Study(str(file), ("attack=sign_flip", "attack.share=0.4", "algorithm=local,fedavg"))
    alone = [study.alone(choice) for choice in study.choices]
    assert alone == [("algorithm=local",), ("attack=sign_flip", "attack.share=0.4", "algorithm=fedavg")]
    assert [load_config(file, overrides) for overrides in alone] == study.configs


@needs("hostile", "compression", "secure")
def test_an_option_that_the_command_gives_is_never_left_out(tmp_path: Path) -> None:
    file = written(tmp_path / "config.yaml", with_value("attack", {"kind": "backdoor", "target": 2}))
    with refused("command line", "attack.target", says="is for attack.kind backdoor, found sign_flip"):
        load_config(file, ["attack.target=3", "attack=sign_flip"])
    # What another section has is not for a word to take out of a run.
    run = tmp_path / "run"
    run.mkdir()
    config = config_from({**PLAIN, "communication": {"upload": "int8"}})
    (run / "config.yaml").write_text(with_seal(yaml.safe_dump(config.plain())))
    with refused(str(run / "config.yaml"), "communication.upload", says="is for secure.kind none, found masks"):
        load_config(run, ["secure=masks"])


def test_the_last_of_several_for_one_section_holds(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = [("gcn", {}), ("sage", {"hidden": 8})]
    for overrides, models in (
        (["model=[gcn,sage]", "model=sgc"], [("sgc", {})]),
        (["model=sgc", "model=[gcn,sage]", "model.1.hidden=8"], two),
        (["model.1.hidden=8", "model=[gcn,sage]"], two),
        (["model.name=sgc", "model=gcn"], [("gcn", {})]),
        (["model={name: gcn, hidden: 8}", "model=sage"], [("sage", {})]),
    ):
        assert [(model.name, model.options) for model in load_config(file, overrides).models()] == models
    assert capsys.readouterr().err == ""
    with refused("command line", "train.schedule.name", says="missing"):
        load_config(file, ["train.schedule.gamma=0.9", "train.schedule=null"])


def test_a_list_that_goes_names_the_options_of_its_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = [{"name": "gcn", "hidden": 8}, "sgc", {"name": "sage", "init": "own"}]
    load_config(written(tmp_path / "config.yaml", with_value("model", models)), ["model=gcn"])
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in said] == ["model.0.hidden", "model.2.init"]


def test_long_forms_leave_all_else_alone() -> None:
    plain = {
        "a": 1,
        "algorithm": {"name": "fml", "copilot": "gcn"},
        "data": {"features": "degree", "options": {"features": "x"}},
    }
    long = with_long_forms(plain, sections())
    assert long == {**plain, "data": {"features": {"kind": "degree"}, "options": {"features": "x"}}}
    assert with_long_forms({"callbacks": ["csv", {"name": "mlflow"}]}, sections())["callbacks"][0] == {"name": "csv"}
    assert isinstance(config_from({**PLAIN, "callbacks": ["csv"]}), Config)


# Values laid over a file, some of which need OmegaConf.
LAID = ["rounds=3", "model=gcn", "model.hidden=8", "model={name: sage, layers: 1}", "data.options={seed: 4}"]
LAID += ["data.fractions=[0.5, 0.2, 0.3]", "name=${data.dataset}", "data=null", "train.lr=0.1", "data.options.seed=1"]


@pytest.mark.parametrize("texts", itertools.permutations(LAID, 2))
def test_plain_values_are_laid_over_a_config_as_omegaconf_does(texts: tuple[str, str]) -> None:
    file = yaml.safe_dump({**PLAIN, "model": {"name": "sgc", "hidden": 4}, "train": {"lr": 1.0}})
    given = [override_of(text) for text in texts]
    outcomes = []
    for lay in (lambda: _lay_over(file, given, None), lambda: _resolve(OmegaConf.create(_content(file)), given)):
        try:
            outcomes.append(lay())
        except ShoalError as error:
            outcomes.append(error.line)
        except ValueError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
