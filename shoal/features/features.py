"""All features that have a folder of `shoal/`: the only list of them."""

from shoal.attacks.feature import ATTACKS
from shoal.bisect.feature import BISECT
from shoal.board.feature import BOARD
from shoal.clock.feature import CLOCK
from shoal.evaluator.feature import EVALUATOR
from shoal.features.feature import Feature
from shoal.influence.feature import INFLUENCE
from shoal.pooled.feature import POOLED
from shoal.search.feature import SEARCH
from shoal.shifts.feature import SHIFTS
from shoal.unlearning.feature import UNLEARNING
from shoal.values.feature import VALUES

# Their sections of a page have this order.
FEATURES: tuple[Feature, ...] = (
    CLOCK,
    SEARCH,
    INFLUENCE,
    ATTACKS,
    EVALUATOR,
    POOLED,
    SHIFTS,
    BISECT,
    VALUES,
    UNLEARNING,
    BOARD,
)
