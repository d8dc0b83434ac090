"""The feature `search`: sweeps whose options Optuna draws."""

from shoal.features.feature import Feature

SEARCH = Feature(
    page="shoal.search.search_page:search_sections",
    searches={"optuna": "shoal.search.search:make_search"},
    chosen="shoal.search.search_page:read_chosen",
)
