"""The feature `values`: what each client of a run adds to its score, by coalitions of clients."""

from shoal.features.feature import Feature

VALUES = Feature(
    readers={"values": "shoal.values.values:ValuesReader"},
    command="values",
    runs="shoal.values.command:values_command",
    behind="fork",
    page="shoal.values.values_page:values_sections",
)
