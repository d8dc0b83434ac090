"""The feature `influence`: what each client changes of the scores of a run."""

from shoal.features.feature import Feature

INFLUENCE = Feature(
    readers={"influence": "shoal.influence.influence:InfluenceReader"},
    command="influence",
    runs="shoal.influence.command:influence_command",
    behind="fork",
    page="shoal.influence.influence_page:influence_sections",
)
