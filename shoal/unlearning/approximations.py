"""Approximations of a removal, each behind one hook, `unlearn(rest)`; a user's own is `my_file.py:Mine`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor

from shoal.storage.errors import ShoalError
from shoal.storage.files.digest import text_digest
from shoal.storage.options.types import is_own
from shoal.storage.suggestions import did_you_mean
from shoal.storage.user_code.user_code import UserCode, read_user_code
from shoal.unlearning.rest import Approximation, Rest

# The radius of the ball is a part of the mean distance to so many models that were drawn.
DRAWN, PART_OF_DISTANCE = 10, 1 / 3


@dataclass(frozen=True)
class FineTune:
    """Goes on from the last model, on the rest.

    Attributes:
        rounds: Rounds on the rest; None: a tenth of those of the run.
    """

    rounds: int | None = None

    def unlearn(self, rest: Rest) -> Tensor:
        return rest.train(rest.model, self.rounds or rest.usual_rounds)


@dataclass(frozen=True)
class GradientAscent:
    """Bounded ascent on the forgotten items, then rounds on the rest, after Halimi et al. (arXiv 2207.05521).

    Each client with forgotten items climbs from a reference, within a ball around it, until the loss of these is that
    of a model that knows nothing, log C. The radius is a third of the mean distance of the reference to ten drawn
    models. The reference is the last model without the removed client's last upload: (W w - n_i w_i) / (W - n_i). The
    server averages what clients climbed to by their forgotten items. Steps are plain: no momentum, no dropout. That the
    server keeps the last uploads is not counted as work.

    Attributes:
        rounds: Rounds on the rest behind it; None: a tenth of those of the run.
        steps: Most steps of a client.
        lr: Length of a step, as a part of the gradient, of norm `clip` at most.
        clip: Largest norm of a gradient.
    """

    rounds: int | None = None
    steps: int = 100
    lr: float = 0.1
    clip: float = 1.0

    def unlearn(self, rest: Rest) -> Tensor:
        _require_items(rest, "gradient_ascent")
        ball = Ball.around(self._reference(rest), rest)
        climbed, _ = climb(rest, ball.centre, ball, self)
        return rest.train(climbed, self.rounds or rest.usual_rounds)

    def _reference(self, rest: Rest) -> Tensor:
        w, gone = rest.model, set(rest.removal.clients)
        uploads = rest.history.last if gone else []
        weight = sum(sent.weight for sent in uploads)
        left = weight - sum(sent.weight for sent in uploads if sent.client in gone)
        if not left or left == weight:
            return w
        # All changes of a round are from the model before it, w - sum_i n_i c_i / W.
        kept = sum(sent.weight * sent.change.double() for sent in uploads if sent.client not in gone)
        every = sum(sent.weight * sent.change.double() for sent in uploads)
        return (w.double() - every / weight + kept / left).float()


@dataclass(frozen=True)
class OrthogonalAscent:
    """Ascent on the forgotten items, orthogonal to the gradient of the rest: the gradient correction of FedGCV.

    FedGCV (Ma et al., arXiv 2605.02297) steers updates in directions orthogonal to the gradients of other data. Here
    each phase begins with the gradient g of mean cross-entropy over the training items of the rest. Clients with
    forgotten items climb along d - (d g / g g) g, where d is the gradient of theirs, within the ball of gradient ascent
    around the last model, and the server averages what they climbed to by these items. Phases end where the mean loss
    of these is log C. Where d and g are opposite, as at a best model of both, nothing is left to climb along.

    A form of our own, after the abstract and the authors' code, github.com/Emma050830/FedGCV_FGMU. That takes g once
    (`climbs=1`), of one client, a loss that compares with the model before (NPO), and Adam, behind which a step is not
    orthogonal any more. Its virtual clients are left out: their generator is not in the public code that we know, and
    learns from the removed client's graph. Rounds on the rest are in their place.

    Attributes:
        rounds: Rounds on the rest behind it; None: a tenth of those of the run.
        climbs: Most phases, each a visit of all clients of the rest, and of those with forgotten items.
        steps: Steps of a client in a phase; with 1 each step is orthogonal to the gradient where it begins.
        lr: Length of a step, as a part of the corrected gradient, of norm `clip` at most.
        clip: Largest norm of a corrected gradient.
    """

    rounds: int | None = None
    climbs: int = 10
    steps: int = 5
    lr: float = 0.1
    clip: float = 1.0

    def unlearn(self, rest: Rest) -> Tensor:
        _require_items(rest, "orthogonal_ascent")
        w, ball = rest.model, Ball.around(rest.model, rest)
        for _ in range(self.climbs):
            climbed, loss = climb(rest, w, ball, self, rest.gradient_of_rest(w))
            if loss >= math.log(rest.classes):
                break
            w = climbed
        return rest.train(w, self.rounds or rest.usual_rounds)


@dataclass(frozen=True)
class Ball:
    """The ball that clients climb in: around parameters `[P]`."""

    centre: Tensor
    radius: float

    @staticmethod
    def around(centre: Tensor, rest: Rest) -> "Ball":
        """Makes a ball whose radius is a part of the mean distance to drawn models."""
        distances = [float((w - centre).norm()) for w in rest.draw_models(DRAWN)]
        return Ball(centre, PART_OF_DISTANCE * sum(distances) / len(distances))


def climb(
    rest: Rest, begin: Tensor, ball: Ball, options: GradientAscent | OrthogonalAscent, other: Tensor | None = None
) -> tuple[Tensor, float]:
    """Lets each client with forgotten items climb on them from parameters `[P]`, orthogonally to a gradient, if any.

    A step out of the ball is pulled back to its surface, also along that gradient. Returns the mean of what clients
    climbed to, and their mean loss before it, both by their forgotten items.
    """
    climbed, loss_sum, items = torch.zeros_like(begin, dtype=torch.float64), 0.0, 0
    for client in rest.forgotten:
        w = begin.clone()
        for step in range(options.steps):
            loss, gradient, count = rest.gradient(client, w)
            loss_sum += 0.0 if step else count * loss
            if loss >= math.log(rest.classes):
                break
            gradient = gradient if other is None else make_orthogonal(gradient, other)
            norm = float(gradient.norm())
            w = w + options.lr * min(1.0, options.clip / max(norm, 1e-12)) * gradient
            away = w - ball.centre
            if (distance := float(away.norm())) > ball.radius:
                w = ball.centre + away * (ball.radius / distance)
        climbed += count * w.double()
        items += count
    rest.count_visit(len(rest.forgotten))
    return (climbed / items).float(), loss_sum / items


def make_orthogonal(gradient: Tensor, other: Tensor) -> Tensor:
    """Returns what is left of a gradient `[P]` without its part along another; computed in float64."""
    along, square = gradient.double(), float(other.double().square().sum())
    if square:
        along = along - other.double() * (float(along @ other.double()) / square)
    return along.to(gradient.dtype)


def _require_items(rest: Rest, name: str) -> None:
    if not rest.forgotten:
        raise ShoalError("--methods", f"{name} climbs on training items, and {rest.removal.name} has none")


@dataclass(frozen=True)
class FedEraser:
    """Recorded changes in directions of the rest: FedEraser (Liu et al., IWQoS 2021).

    From the first model on, the changes of the rest in every `every`-th round count again: each client trains `share`
    of its epochs from the new model, and its change gets the norm of the recorded one. In the first round the recorded
    changes themselves count, but of clients that lost items. That the server keeps uploads is not counted as work.

    Attributes:
        every: A round of so many is retained.
        share: Epochs of a calibration, as a part of those of a visit, one or more.
    """

    every: int = 2
    share: float = 0.5

    def unlearn(self, rest: Rest) -> Tensor:
        w, gone, touched = rest.first_model, set(rest.removal.clients), set(rest.removal.touched)
        epochs = max(1, round(self.share * rest.epochs))
        for number in range(1, rest.run_rounds + 1, self.every):
            recorded = rest.history.uploads[number]
            if number == 1 and not touched - gone & recorded.keys():
                sent = [upload for upload in rest.history.first if upload.client not in gone]
                changes = [(upload.weight, upload.change) for upload in sent]
            else:
                changes = []
                for upload in rest.visit(number, w, epochs) if recorded.keys() - gone else []:
                    norm = float(upload.change.norm())
                    if upload.client in recorded and norm:
                        changes.append((upload.weight, upload.change * (recorded[upload.client].norm / norm)))
            if weight := sum(weight for weight, _ in changes):
                w = w + (sum(n * change.double() for n, change in changes) / weight).float()  # type: ignore[union-attr]
        return w


@dataclass(frozen=True)
class ForgettingHead:
    """Draws the last layer anew, and trains it on the rest; the body stays (EU-k of Goel et al., arXiv 2201.06640).

    Clients train the whole model, and the server puts its body back behind each round. A model of one layer is trained
    anew as a whole.

    Attributes:
        rounds: Rounds on the rest; None: a tenth of those of the run.
    """

    rounds: int | None = None

    def unlearn(self, rest: Rest) -> Tensor:
        w = self._with_body(rest, rest.draw_models(1)[0])
        return rest.train(w, self.rounds or rest.usual_rounds, lambda new: self._with_body(rest, new))

    def _with_body(self, rest: Rest, w: Tensor) -> Tensor:
        joined = rest.model.clone()
        joined[rest.head] = w[rest.head]
        return joined


METHODS: dict[str, type[Approximation]] = {
    "fine_tune": FineTune,
    "gradient_ascent": GradientAscent,
    "orthogonal_ascent": OrthogonalAscent,
    "federaser": FedEraser,
    "forgetting_head": ForgettingHead,
}
KEY, NONE = "--methods", "none"
# They have nothing to climb on where no training item is forgotten.
CLIMBING = ("gradient_ascent", "orthogonal_ascent")


@dataclass(frozen=True)
class Chosen:
    """An approximation that was asked for.

    Attributes:
        name: Its name, in tables.
        method: It with its options.
        code: The user's file that it is in; None: it is one of ours.
    """

    name: str
    method: Approximation
    code: UserCode | None = None

    @property
    def described(self) -> str:
        """Its options, and the digest of a user's text, by which results are kept."""
        text = "" if self.code is None else f" {text_digest(self.code.source)[:12]}"
        return f"{self.name} {self.method!r}{text}" if text else repr(self.method)

    def unlearn(self, rest: Rest) -> Tensor:
        """Returns the parameters `[P]`; raises ShoalError: as the method, or they are of another shape."""
        if self.code is None:
            return self.method.unlearn(rest)
        with self.code.at_work(KEY):
            w = self.method.unlearn(rest)
        if not isinstance(w, Tensor) or w.shape != rest.model.shape:
            got = list(w.shape) if isinstance(w, Tensor) else type(w).__name__
            raise self.code.fault(KEY, f"unlearn() gives {got}, expected parameters {list(rest.model.shape)}")
        return w


def choose(names: Sequence[str], rounds: int | None) -> list[Chosen]:
    """Makes the approximations of names, each with its usual options but for `rounds`.

    Raises ShoalError: a name is unknown, or no class of a user's file has the hook.
    """
    chosen = []
    for name in names:
        code = None
        if is_own(name):
            code = read_user_code(KEY, name)
            cls = code.load()
            if not isinstance(cls, type) or not is_dataclass(cls) or not callable(getattr(cls, "unlearn", None)):
                raise code.fault(KEY, "expected a frozen dataclass with def unlearn(self, rest)")
        elif name in METHODS:
            cls = METHODS[name]
        else:
            names_of_all = f"{', '.join(METHODS)}, {NONE}, or my_file.py:Mine"
            raise ShoalError(KEY, f"{did_you_mean(name, METHODS)}{name!r} is unknown; there are {names_of_all}")
        takes = rounds is not None and "rounds" in {option.name for option in fields(cls)}
        method: Approximation = cls(rounds=rounds) if takes else cls()
        chosen.append(Chosen(name.rpartition(":")[2], method, code))
    return chosen
