"""All that features declare is there, and their commands stand where they say."""

import pytest

from shoal.cli.cli import app
from shoal.cli.readers import READERS
from shoal.engine.sections.section import load
from shoal.features.feature import Feature
from shoal.features.features import FEATURES


@pytest.mark.parametrize(
    "feature", FEATURES, ids=lambda feature: next(iter([*feature.readers, *feature.searches, feature.command]))
)
def test_every_place_that_a_feature_names_is_there(feature: Feature) -> None:
    places = [*feature.readers.values(), *feature.searches.values(), feature.runs, feature.page, feature.chosen]
    places += [feature.inspected, *(feature.verifies or ())[1:]]
    assert all(callable(load(place)) for place in places if place)
    assert bool(feature.command) == bool(feature.runs) == bool(feature.behind)
    assert feature.readers.keys() <= READERS.keys()


def test_commands_follow_those_that_their_features_name() -> None:
    names = [command.name for command in app.registered_commands]
    assert len({*names}) == len(names)
    behind = {feature.command: feature.behind for feature in FEATURES if feature.command}
    for command, other in behind.items():
        between = names[names.index(other) + 1 : names.index(command)]
        assert all(behind.get(name) == other for name in between), command


def test_no_two_features_have_a_name_in_common() -> None:
    names = [name for feature in FEATURES for name in (*feature.readers, *feature.searches)]
    assert len({*names}) == len(names)
