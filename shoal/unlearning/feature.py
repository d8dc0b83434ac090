"""The feature `unlearning`: exact removal of data from a run, and approximations scored against it."""

from shoal.features.feature import Feature

UNLEARNING = Feature(
    readers={"unlearn": "shoal.unlearning.unlearn:UnlearnReader"},
    command="unlearn",
    runs="shoal.unlearning.command:unlearn_command",
    behind="fork",
)
