"""The feature `clock`: simulated time of finished runs."""

from shoal.features.feature import Feature

CLOCK = Feature(
    readers={"clock": "shoal.clock.report:ClockReader"},
    command="clock",
    runs="shoal.clock.command:clock_command",
    behind="report",
)
