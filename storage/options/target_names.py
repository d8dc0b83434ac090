"""Names of what is predicted of every item."""

from typing import Literal, get_args

Target = Literal["classification", "regression", "multilabel"]
CLASSIFICATION, REGRESSION, MULTILABEL = get_args(Target)
