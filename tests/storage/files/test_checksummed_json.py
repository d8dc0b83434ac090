"""Every change of a sealed object is noticed."""

import json
import random

import pytest

from shoal.storage.files.checksummed_json import sealed, unsealed

PLAIN = {"round": 4, "loss": 0.1, "names": ["ä", "b"], "by": {3: {"x": None, "y": True}}}


def test_comes_back_as_json_has_it() -> None:
    text = sealed(PLAIN)
    assert unsealed(text) == json.loads(json.dumps(PLAIN))
    # Neither spaces nor the order of keys matter.
    assert unsealed(sealed(PLAIN, indent=1)) == unsealed(text)
    assert unsealed(json.dumps(dict(reversed(json.loads(text).items())), indent=3)) == unsealed(text)


@pytest.mark.parametrize("seed", range(200))
def test_a_changed_byte_is_refused_or_changes_nothing(seed: int) -> None:
    text = bytearray(sealed(PLAIN).encode())
    rng = random.Random(seed)
    text[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
    try:
        found = unsealed(bytes(text))
    except ValueError:
        return
    assert found == unsealed(sealed(PLAIN))


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"a": 1}', "[" * 100_000, '{"seal": null}'])
def test_what_is_no_sealed_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        unsealed(text)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_has_no_nan(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        sealed({"loss": number})
