"""The feature `shifts`: by how much the data of clients differ."""

from shoal.features.feature import Feature

SHIFTS = Feature(
    readers={"shifts": "shoal.shifts.reader:ShiftsReader"},
    inspected="shoal.shifts.inspected:summarize",
    page="shoal.shifts.shifts_page:shift_sections",
)
