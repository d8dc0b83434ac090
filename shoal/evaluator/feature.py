"""The feature `evaluator`: scores of a run on a dataset of OGB by OGB's Evaluator."""

from shoal.features.feature import Feature

EVALUATOR = Feature(readers={"ogb": "shoal.evaluator.evaluator:EvaluatorReader"})
