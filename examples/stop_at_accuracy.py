"""A user's callback: it ends the run at an accuracy.

shoal run configs/quickstart.yaml 'callbacks=[{name: "examples/stop_at_accuracy.py:StopAt", accuracy: 0.8}]'
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import shoal


@dataclass
class StopAt(shoal.Callback):
    """Ends a run at its first evaluation with an accuracy on validation rows.

    Attributes:
        accuracy: So high, a share of 1.
        scope: `deployed`, `trained` or `global`.
    """

    accuracy: float = 0.9
    scope: str = "deployed"

    def after_evaluation(self, run: shoal.Running, line: Mapping[str, Any]) -> None:
        """Looks at the accuracy, weighted by all items of a client."""
        reached = line["scopes"][self.scope]["val"]["nodes"]
        if reached >= self.accuracy:
            run.stop(f"{self.scope} validation accuracy {reached:.3f} is at least {self.accuracy}")
