"""Verdicts on a paper's figures beside ours: whether a gap is noise, how many agree, and which scores compare."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from shoal.engine.config.sections import BOTH, DOMAINS
from shoal.study.means import OF_CLIENTS, is_short
from shoal.tables.papers import Printed

LEVEL = 0.95
# A figure that is at most so many points away is said to agree.
NEAR = 1.0
# An interval that holds 0 is a verdict if it is narrower than that to each side.
WITHIN, OUTSIDE, TOO_FEW = f"within {NEAR:.1f}", "outside", "too few seeds to tell"
NOISE = (
    f"noise: Welch's {100 * LEVEL:.0f} % interval of the gap, over seeds here and the paper's repetitions; {WITHIN}: "
    f"it holds 0, and half its width is below {NEAR:g} point (of bytes and seconds 1 % of the paper's figure); "
    f"{OUTSIDE}: it does not hold 0; a figure that the paper prints without a deviation, or without their number, "
    "counts as exact"
)
UNLIKE = "marks, and `over Local`, compare scores of the same items and weights alone"
# All of these models are scored on the clients' own items.
OF_MODELS = ("trained", "deployed", "global")
LAST_FIVE = "last_five"
# The accuracies of constant classes on whole graphs are means over domains, as `clients` is there.
OF_DOMAINS = ("clients", "majority", "constant")


@dataclass(frozen=True)
class Agreement:
    """The gaps of our figures to a paper's in points, the verdict on each, and how many figures have no runs."""

    gaps: tuple[float, ...] = ()
    verdicts: tuple[str, ...] = ()
    without: int = 0

    def __add__(self, other: "Agreement") -> "Agreement":
        """Returns the agreement over the figures of both."""
        return Agreement(self.gaps + other.gaps, self.verdicts + other.verdicts, self.without + other.without)

    @property
    def number(self) -> str:
        """The number of figures that are near the paper's, of those that have runs; empty where none has."""
        near = sum(round(abs(gap), 2) <= NEAR for gap in self.gaps)
        return f"{near} of {len(self.gaps)}" if self.gaps else ""

    @property
    def number_is(self) -> str:
        """The words behind the number: its meaning, how many figures differ by noise alone, and the mean gap.

        Figures with too few seeds for a verdict are counted apart, and agree with nothing.
        """
        if not self.gaps:
            return ""
        judged = [verdict for verdict in self.verdicts if verdict in (WITHIN, OUTSIDE)]
        few = sum(verdict.startswith(TOO_FEW) for verdict in self.verdicts)
        mean = fmean(self.gaps)
        parts = [f"figures within {NEAR:g} point of the paper's"]
        parts += [f"{judged.count(WITHIN)} of {len(judged)} within noise"] if judged else []
        parts += [f"{few} with too few seeds to tell"] if few else []
        parts += [f"in the mean {abs(mean):.1f} points {'lower' if mean < 0 else 'higher'}"]
        missing = f"{self.without} figure{'s have' if self.without > 1 else ' has'} no runs"
        return "; ".join([*parts, *([missing] if self.without else [])])

    @property
    def line(self) -> str:
        """The number with its words."""
        return f"{self.number} {self.number_is}".strip()


def verdict(values: Sequence[float], printed: Printed | None, runs: int | None, share: bool = True) -> str:
    """Returns whether the difference of a mean and a paper's figure is noise, by Welch's t-test over repetitions.

    An interval that holds 0 is a verdict only if half its width is below `NEAR` points, or, of what is no share, below
    1 % of the paper's figure; else the text has the interval. A paper's figure without a deviation, or without a number
    of runs, counts as exact. `-` where there is no figure, or fewer than two values.
    """
    if printed is None or len(values) < 2:
        return "-"
    gap, half = fmean(values) - printed.value, half_width(values, printed, runs)
    if abs(gap) > half:
        return OUTSIDE
    if half < (NEAR if share else NEAR / 100 * abs(printed.value)) or half == 0:
        return WITHIN
    return f"{TOO_FEW}: {gap:+.1f} ± {half:.{0 if half >= 10 else 1}f}"


def half_width(values: Sequence[float], printed: Printed, runs: int | None) -> float:
    """Computes half the width of Welch's interval of the gap, in the unit of the figures."""
    parts = [(stdev(values) ** 2 / len(values), len(values) - 1)]
    if printed.deviation is not None and runs is not None and runs > 1:
        parts.append((printed.deviation**2 / runs, runs - 1))
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return 0.0
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    # SciPy's statistics take a second to import, so only a table that needs them does.
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom)) * variance**0.5


def items_and_weights(score: str, mean: str, clients: float) -> tuple[str, str, str, float]:
    """Returns whose items a score is of, their part, its metric with its mean, and what the mean is over.

    Scores that differ in one of them are of other items, or weigh them otherwise: nothing compares them.

    Args:
        score: A name as `deployed.best.test`, or one with a metric behind it.
        mean: The mean over clients of short names.
        clients: The number of clients of the run, over which `nodes` and `clients` are means; `global` has one.
    """
    scope, moment, *rest = score.split(".")
    whose = "clients" if scope in OF_MODELS else scope
    # The last five rounds have numbers of validation and test items together.
    part, *metric = [BOTH, *rest] if moment == LAST_FIVE else rest or [""]
    named = mean if is_short(score) else ".".join(metric)
    named = OF_DOMAINS[0] if scope == DOMAINS and named in OF_DOMAINS else named
    return whose, part, named, clients if scope != DOMAINS and named in OF_CLIENTS else 0
