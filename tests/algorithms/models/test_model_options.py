import pytest
from pydantic import ValidationError

from shoal.algorithms.models.model_options import ModelSpec


def test_a_model_is_fedgta_s_and_shared_unless_the_config_says_more() -> None:
    assert (ModelSpec().name, ModelSpec().init, ModelSpec().options) == ("gamlp", "shared", {})
    assert ModelSpec().pretrained is None


def test_keys_beside_name_and_init_are_the_backbone_s() -> None:
    choice = ModelSpec(name="gat", init="own", heads=3, fanouts=[2, 2])  # type: ignore[call-arg]
    assert (choice.name, choice.init, choice.options) == ("gat", "own", {"heads": 3, "fanouts": [2, 2]})


def test_there_is_no_third_way_to_start() -> None:
    with pytest.raises(ValidationError, match="init"):
        ModelSpec(init="both")  # type: ignore[arg-type]
