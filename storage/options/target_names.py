"""Names of what is predicted of every item."""

from typing import Literal, get_args

Target = Literal["classification", "regression", "multilabel", "clustering"]
CLASSIFICATION, REGRESSION, MULTILABEL, CLUSTERING = get_args(Target)
# Labels of these are one class an item; those of clustering score clusters, and nothing else reads them.
OF_CLASSES = (CLASSIFICATION, CLUSTERING)
