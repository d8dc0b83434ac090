"""Sections of a config about its rounds: who takes part and when, and what becomes of uploads."""

import os
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.dataclasses import dataclass

from shoal.storage.options.types import (
    CLOSED,
    Count,
    FilePath,
    Flag,
    Name,
    Number,
    Positive,
    Seed,
    Whole,
    WithShortForm,
    absolute,
    is_own,
)


def _or_own(*words: str, table: bool = False) -> AfterValidator:
    """One of some words, or a function of the user's, or as a `table` a CSV."""

    def check(name: str) -> str:
        if name not in words and not (is_csv if table else is_own)(name):
            raise ValueError(f"expected {', '.join(words)} or {'my_file.csv' if table else 'my_file.py:my_function'}")
        return name

    return AfterValidator(check)


def is_csv(name: Any) -> bool:
    """Whether a name is one of a CSV, and not one of ours."""
    return isinstance(name, str) and name.endswith(".csv")


Table = Annotated[str, BeforeValidator(lambda name: absolute(name) if is_csv(name) else name)]


@dataclass(frozen=True, config=CLOSED)
class AvailabilityOptions(WithShortForm):
    """When clients are online (`shoal.engine.participation.availability`). A kind alone stands for the section.

    Attributes:
        kind: In all rounds (`always`); each client in the same part of every period, from a place of its own on
            (`periodic`); in drawn sessions (`weibull`); or in those of `my_file.csv` with the columns `client`, `from`
            and `to`, rounds from 1, both of them included.
        period: Rounds from one session to the next; of `weibull` the mean.
        share: Of the period that a client is online.
        shape: Of the Weibull distribution of sessions and of the pauses between them; 1 is exponential.
    """

    kind: Annotated[Table, _or_own("always", "periodic", "weibull", table=True)] = "always"
    period: Positive = 24
    share: Annotated[Number, Field(gt=0, lt=1)] = 0.5
    shape: Annotated[Number, Field(ge=0.2, le=20)] = 1.0


@dataclass(frozen=True, config=CLOSED)
class ParticipationOptions:
    """The clients of a round: without more keys drawn uniformly and without replacement, and all finish.

    Attributes:
        ratio: Share of all clients, rounded down to one or more.
        count: Number of clients; wins over `ratio`.
        draw: So many clients in every round (`fixed`); each on its own with that share as its probability
            (`poisson`), so that their number varies and may be 0; or drawn groups of at most so many, equal but for
            one client, that take part by turns (`cyclic`).
        at_least: A round with fewer clients online does not take place.
        trace: `.npy` of 0 and 1, `[rounds, clients]`: which client is online in which round, repeated from its start.
        without: Clients that never answer: each is drawn as the others are, and left out of its rounds, so that the
            rounds of others stay as they are. They are still evaluated.
        availability: When clients are online, without a trace.
        devices: What clients compute with, as of `shoal clock`: `phones`, `hospital` or a CSV.
        network: Their links, as of `shoal clock`: `consumer`, `institutions` or a CSV.
        seed: Of availability, devices and links, which runs of another `seed` share.
        deadline: Seconds of simulated time after which the server waits for no upload.
        over_selection: So many times the clients are drawn, rounded up; those that finish first take part.
        dropout: Chance that a drawn client drops out of the round.
        selection: How clients are drawn: uniformly (`random`), by `loss`, `oort`, `power_of_choice`, or by
            `my_file.py:Select`; see `shoal.engine.participation.selection`.
        candidates: Clients among which `power_of_choice` chooses; null: twice as many as it chooses.
    """

    ratio: Annotated[Number, Field(gt=0, le=1)] = 1.0
    count: Positive | None = None
    draw: Literal["fixed", "poisson", "cyclic"] = "fixed"
    at_least: Positive = 1
    trace: FilePath | None = None
    without: tuple[Whole, ...] = ()
    availability: AvailabilityOptions = AvailabilityOptions()
    devices: Table | None = None
    network: Table | None = None
    seed: Seed = 0
    deadline: Annotated[Number, Field(gt=0)] | None = None
    over_selection: Annotated[Number, Field(ge=1, le=100)] = 1.0
    dropout: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    selection: Annotated[Name, _or_own("random", "loss", "oort", "power_of_choice")] = "random"
    candidates: Positive | None = None

    def size(self, clients: int) -> int:
        """How many clients of all take part in a round where all are online, of groups the largest."""
        return -(-clients // self.groups(clients)) if self.draw == "cyclic" else self._asked(clients)

    def groups(self, clients: int) -> int:
        """How many groups take part by turns, with `draw: cyclic`."""
        return -(-clients // self._asked(clients))

    def _asked(self, clients: int) -> int:
        return self.count or max(1, int(clients * self.ratio + 1e-9))

    @property
    def simulates(self) -> bool:
        """Whether anything but the uniform draw, and a trace, says who takes part, or when a round ends."""
        usual = self.selection == "random" and not self.dropout and self.devices is None
        return not usual or self.availability.kind != "always"


FEDASYNC, TIERS = "fedasync", "tiers"
# A name of ours is no path.
IN_ORDER = Field(union_mode="left_to_right")


@dataclass(frozen=True, config=CLOSED)
class ScheduleOptions(WithShortForm):
    """When the server steps; see docs/asynchronous.md. A name alone stands for the section.

    Attributes:
        name: With the uploads of a cohort, round by round (`synchronous`), with every upload (`fedasync`), with every
            `buffer` uploads (`fedbuff`), or with those of a cohort of one of `tiers`, which come in simulated time.
        concurrency: Clients that train at a time.
        buffer: Uploads of a step of `fedbuff`.
        tiers: Groups of clients of about one speed, the fastest first; sizes differ by one client at most.
        staleness: Weight of an upload by its staleness s, the steps of the server since its client began: 1
            (`constant`), (1 + s)^-a (`polynomial`), or 1 up to s = b and 1 / (a (s - b) + 1) from there (`hinge`).
        a: See `staleness`.
        b: See `staleness`.
        mixing: Weight of an upload of `fedasync` that is not stale.
        devices: What clients compute with, `phones`, `hospital` or a CSV as of `shoal clock`.
        network: Their links, `consumer`, `institutions` or such a CSV; with `none` messages take no time.
        seed: Of the device and the link of each client.
    """

    short: ClassVar[str] = "name"
    name: Literal["synchronous", "fedasync", "fedbuff", "tiers"] = "synchronous"
    concurrency: Positive = 10
    buffer: Positive = 10
    tiers: Positive = 5
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    a: Annotated[Number, Field(gt=0)] = 0.5
    b: Count = 4
    mixing: Annotated[Number, Field(gt=0, le=1)] = 0.6
    devices: Annotated[Literal["phones", "hospital"] | FilePath, IN_ORDER] = "phones"
    network: Annotated[Literal["none", "consumer", "institutions"] | FilePath, IN_ORDER] = "consumer"
    seed: Seed = 0

    @property
    def synchronous(self) -> bool:
        """Whether rounds follow one another."""
        return self.name == "synchronous"

    @property
    def in_step(self) -> int:
        """Uploads of a step, which does not wait for a tier."""
        return 1 if self.name == FEDASYNC else self.buffer

    @property
    def files(self) -> dict[str, str]:
        """Files of the user's own, by key."""
        named = {"schedule.devices": self.devices, "schedule.network": self.network}
        return {key: place for key, place in named.items() if os.path.isabs(place)}


@dataclass(frozen=True, config=CLOSED)
class CommunicationOptions:
    """What clients send of the float tensors of their uploads; see `shoal.engine.stages.compression`.

    Attributes:
        upload: All of it (`none`); the numbers of largest magnitude of each tensor's change (`topk`); or the change in
            one byte a number, rounded at random (`int8`). Tensors of fewer than 256 numbers are sent whole.
        ratio: Share of the numbers that `topk` sends, rounded down to one or more.
        error_feedback: Clients keep what was left unsent, and add it to their next upload.
    """

    upload: Literal["none", "topk", "int8"] = "none"
    ratio: Annotated[Number, Field(gt=0, le=1)] = 0.01
    error_feedback: Flag = True


@dataclass(frozen=True, config=CLOSED)
class AttackOptions(WithShortForm):
    """Hostile clients, the same in all rounds; see `shoal.engine.stages.hostile`. A kind alone stands for the section.

    Attributes:
        kind: No attack (`none`); training labels y become C - 1 - y (`label_flip`); some training nodes get a trigger
            and the label `target` (`backdoor`, see `shoal.storage.store.trigger`); or the change of each mean entry
            from what the client received becomes `scale` times its opposite (`sign_flip`), noise of `scale` times its
            root mean square (`gaussian`), `scale` times itself (`scaled`), or what `my_file.py:Own` makes of it.
        share: Share of all clients that are hostile, rounded down.
        scale: See `kind`.
        target: The class of a backdoor.
        poison: Share of the training nodes of a hostile client that a backdoor takes, rounded down to one or more.
        nodes: How many nodes it attaches to each.
    """

    kind: Annotated[Name, _or_own("none", "label_flip", "backdoor", "sign_flip", "gaussian", "scaled")] = "none"
    share: Annotated[Number, Field(gt=0, le=1)] = 0.2
    scale: Annotated[Number, Field(gt=0)] = 10.0
    target: Count = 0
    poison: Annotated[Number, Field(gt=0, le=1)] = 0.2
    nodes: Annotated[Positive, Field(le=100)] = 3


@dataclass(frozen=True, config=CLOSED)
class AggregationOptions(WithShortForm):
    """How means of uploads are reduced; see `shoal.engine.stages.robust`. A kind alone stands for the section.

    Attributes:
        kind: The weighted mean (`mean`), of changes of bounded norm (`norm_bound`), or a robust reduction in which
            each client counts once: `median`, `trimmed`, `krum`, `multi_krum`, `bulyan`, `geometric_median`, or
            `fltrust`, by likeness to the change of `root`.
        share: Share of the clients of a round that may be hostile, rounded up, for `trimmed` and Krum's kin.
        bound: Largest l2 norm of the change of a message.
        root: The client that `fltrust` trusts, of which the server has the data.
    """

    kind: Literal[
        "mean", "median", "trimmed", "krum", "multi_krum", "bulyan", "geometric_median", "norm_bound", "fltrust"
    ] = "mean"
    share: Annotated[Number, Field(ge=0, lt=0.5)] = 0.2
    bound: Annotated[Number, Field(gt=0)] = 1.0
    root: Count = 0


@dataclass(frozen=True, config=CLOSED)
class PrivacyOptions:
    """Differential privacy; see `shoal.engine.stages.privacy`, and of nodes `node_privacy` there.

    Attributes:
        unit: What is hidden: nothing (`none`), all data of one `client`, or one `node` with its edges.
        where: Where noise hides a client: at the `server`, on the sum of changes, or at each `client`, on its upload.
        clip: C, the largest l2 norm of the change of a message, or of a training node's gradient; null: any, without
            noise.
        noise: z, of which the noise on a sum of changes, or of gradients, has the deviation z C. Either this, or
            `epsilon`.
        epsilon: Of a client, or a node, after all rounds, for which the least noise is taken.
        delta: Beside epsilon; less than one over the number of clients, or of a client's nodes.
        quantile: Share of the clients of a round with a norm of at most the clip, to which the clip adapts from round
            to round; null: it stays. See `shoal.engine.stages.privacy.adaptive_clip`.
        mechanism: Noise of each round on its own (`gaussian`), or for groups of clients by turns such that later
            rounds take back a part of it (`banded`); see `shoal.engine.stages.privacy.banded`.
        bands: So many rounds share noise; null: as many as there are groups.
    """

    unit: Literal["none", "client", "node"] = "none"
    where: Literal["server", "client"] = "server"
    clip: Annotated[Number, Field(gt=0)] | None = 1.0
    noise: Annotated[Number, Field(ge=0)] | None = None
    epsilon: Annotated[Number, Field(gt=0)] | None = None
    delta: Annotated[Number, Field(gt=0, lt=1)] = 1e-5
    quantile: Annotated[Number, Field(ge=0, le=1)] | None = None
    mechanism: Literal["gaussian", "banded"] = "gaussian"
    bands: Positive | None = None


@dataclass(frozen=True, config=CLOSED)
class SecureOptions(WithShortForm):
    """Secure aggregation, simulated; see `shoal.engine.stages.secure`. A kind alone stands for the section.

    Attributes:
        kind: `none`, or how only the sum of a cohort is read: by `masks`, or by `homomorphic` encryption.
        threshold: Share of the clients drawn that must answer, at least two; with fewer the round is skipped.
    """

    kind: Literal["none", "masks", "homomorphic"] = "none"
    threshold: Annotated[Number, Field(gt=0, le=1)] = 0.5
