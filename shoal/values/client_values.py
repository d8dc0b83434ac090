"""Values of the clients of a run as a table, and in a file of the run.

Axes: P clients that may train, N clients whose items are scored.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.engine.records.run_folder import VALUES
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.reading import read_bytes
from shoal.tables.text_table import TextTable

PARTS = {"val": "validation", "test": "test"}


@dataclass(frozen=True)
class Cost:
    """The work of an estimate.

    Attributes:
        coalitions: Number of coalitions that were scored.
        new: Number of those that were trained for it; others were kept.
        trainings: Work of all of them, visits of clients as a multiple of those of the run.
        new_trainings: That of the new ones.
        rounds: Rounds of the run.
    """

    coalitions: int
    new: int
    trainings: float
    new_trainings: float
    rounds: int


@dataclass(frozen=True)
class ClientValues:
    """Values of clients, in points of accuracy of the server's model on the items of one part of all clients.

    Attributes:
        method: The estimate.
        part: The part that is scored.
        clients: The clients that may train, `[P]`.
        items: Items of each client, `[N]`.
        values: Value of each of `clients`.
        halves: Half the width of its interval with 95 % confidence; 0: it is exact.
        at_clients: What each adds at each client, in points of that client's items, `[P][N]`.
        first: Accuracy of the model that the run begins with; None: the method does not read it.
        last: That of the run's last model.
        others: Clients that never train, whose value is 0.
        note: How the estimate was made.
        cost: Its work.
    """

    method: str
    part: str
    clients: Sequence[int]
    items: Sequence[int]
    values: Sequence[float]
    halves: Sequence[float]
    at_clients: Sequence[Sequence[float]]
    first: float | None
    last: float
    others: Sequence[int]
    note: str
    cost: Cost

    @property
    def order(self) -> list[int]:
        """Returns the places of clients, the one of the largest value first."""
        return sorted(range(len(self.clients)), key=lambda p: (-self.values[p], self.clients[p]))

    @property
    def finding(self) -> str:
        """A line with the clients of the largest and the smallest value."""
        first, last = self.order[0], self.order[-1]
        ends = dict.fromkeys((first, last))
        named = " and ".join(f"client {self.clients[p]} ({self.text_of(p)} points)" for p in ends)
        return f"Largest and smallest value: {named}" if len(ends) > 1 else f"One client trains: {named}"

    def text_of(self, place: int) -> str:
        """Formats the value of a client, with its interval where there is one."""
        half = self.halves[place]
        text = f"{self.values[place]:+.2f}"
        return f"{text} ± {half:.2f}" if half else text

    def table(self, by_client: bool = False) -> TextTable:
        """Makes a table with a row a client, the largest value first, in points.

        `by_client` adds what each adds at each client, with all digits, for programs.
        """
        rows = list[tuple[str, ...]]()
        for p in self.order:
            client, row = self.clients[p], self.at_clients[p]
            own_items, all_items = self.items[client], sum(self.items)
            rest = self.values[p] * all_items - row[client] * own_items
            itself = f"{row[client]:+.2f}" if own_items else "-"
            others = f"{rest / (all_items - own_items):+.2f}" if all_items > own_items else "-"
            numbers: tuple[str, ...] = (f"{self.values[p]:+.2f}", f"{self.halves[p]:.2f}", others, itself)
            if by_client:
                plain = (self.values[p], self.halves[p], rest / max(all_items - own_items, 1), row[client], *row)
                numbers = tuple(f"{number:.17g}" for number in plain)
            rows.append((str(client), str(own_items), *numbers))
        heads = ["client", f"{PARTS[self.part]} items", "value", "± 95 %", "on others", "on itself"]
        heads += [f"on client {j}" for j in range(len(self.items))] if by_client else []
        cost = self.cost
        kept = f", {cost.coalitions - cost.new} of them kept" if cost.new < cost.coalitions else ""
        notes = [
            f"{self.note}; {cost.coalitions} coalitions{kept}",
            f"work of {cost.trainings:.1f} trainings ({cost.trainings * cost.rounds:.0f} rounds of all clients), "
            f"{cost.new_trainings:.1f} of them now",
        ]
        if self.first is not None:
            notes.append(f"accuracy: {self.first:.2f} % of the first model, {self.last:.2f} % of the last")
        if self.others:
            notes.append(f"never asked, value 0: {len(self.others)} clients")
        title = f"values of clients by {self.method}: points of {PARTS[self.part]} accuracy of the server's model"
        return TextTable(tuple(heads), tuple(rows), 1, title=title, notes=tuple(notes))

    def write(self, run: Path) -> None:
        """Keeps them in the folder of the run, for its page."""
        with replacing(run / VALUES) as unfinished:
            unfinished.write_text(sealed(asdict(self)))


def read_values(run: Path) -> ClientValues | None:
    """Reads the values kept in a folder; None: there are none. Raises ShoalError: the file is damaged."""
    try:
        plain = unsealed(read_bytes(run / VALUES))
        return ClientValues(**{**plain, "cost": Cost(**plain["cost"])})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ShoalError(run / VALUES, f"damaged ({error}); shoal values writes it again") from None
