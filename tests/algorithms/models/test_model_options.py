import pytest
from pydantic import ValidationError

from shoal.algorithms.models.model_options import ModelSpec


def test_model_defaults_are_gamlp_and_shared() -> None:
    assert (ModelSpec().name, ModelSpec().init, ModelSpec().options) == ("gamlp", "shared", {})
    assert ModelSpec().pretrained is None


def test_model_other_keys_become_options() -> None:
    choice = ModelSpec(name="gat", init="own", heads=3, fanouts=[2, 2])  # type: ignore[call-arg]
    assert (choice.name, choice.init, choice.options) == ("gat", "own", {"heads": 3, "fanouts": [2, 2]})


def test_model_init_unknown_is_refused() -> None:
    with pytest.raises(ValidationError, match="init"):
        ModelSpec(init="both")  # type: ignore[arg-type]
