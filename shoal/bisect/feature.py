"""The feature `bisect`: where two runs part, and why."""

from shoal.features.feature import Feature

BISECT = Feature(
    readers={"bisect": "shoal.bisect.bisect:BisectReader"},
    command="bisect",
    runs="shoal.bisect.command:bisect_command",
    behind="replay",
)
