"""A package, so that its files share one Ray; see conftest.py."""
