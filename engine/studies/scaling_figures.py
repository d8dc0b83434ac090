"""The figures of a scaling study: speed-up and efficiency beside the ideal, parts of a round, memory."""

from collections.abc import Sequence

from shoal.engine.studies import figures as drawings
from shoal.engine.studies.figures import Drawing
from shoal.engine.studies.groups import Group, Row, spread_of
from shoal.engine.studies.looks import Look, Looks
from shoal.engine.studies.page import Section
from shoal.engine.studies.scaling import CLIENTS, HOSTS, ROUND, scaling_table

MIB = 1 << 20
ON_HOSTS = {"train": "training", "upload": "preparing uploads", "evaluate": "evaluating"}
NOT_KEYS = ("name", "repeat", "warmup", "link")


def is_scaling(looks: Looks) -> bool:
    """Whether what varies is hosts and clients, and the graph along with them."""
    keys = [key for key in looks.keys if key not in NOT_KEYS and not key.startswith("data.options.")]
    return bool(keys) and set(keys) <= {CLIENTS, HOSTS}
