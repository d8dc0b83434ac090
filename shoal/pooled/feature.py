"""The feature `pooled`: scores of all clients' items together."""

from shoal.features.feature import Feature

POOLED = Feature(readers={"pooled": "shoal.pooled.pooled:PooledReader"})
