"""A file of a run to which a command adds its results, a line each: an interrupted command goes on with them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.engine.messages.environment import environment
from shoal.engine.records.run_folder import read_summary
from shoal.engine.screen.progress import say
from shoal.past.rewind import PastRun
from shoal.storage.files.atomic import cannot_write, replacing
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.reading import read_bytes


class KeptLines:
    """Sealed lines of results, below a first one that says for which content, machine and software they hold.

    Attributes:
        path: The file.
        beside: Entries of the first line that do not say for what the results hold; empty: there is no file yet.
    """

    def __init__(
        self,
        past: PastRun,
        name: str,
        take: Callable[[Mapping[str, Any]], None],
        holds_for: Mapping[str, Any] | None = None,
        beside: Sequence[str] = (),
    ) -> None:
        """Reads the file; lines that are damaged, or all if they hold for something else, are dropped, and it says so.

        Args:
            past: The run.
            name: The file's name in the run's folder.
            take: Takes the result of a line; a KeyError, TypeError or ValueError says that the line is damaged.
            holds_for: What else the results depend on, in plain JSON values.
            beside: Keys of the attribute `beside`.
        """
        self.path = past.path / name
        self._head = {"run": past.path.name, **(holds_for or {}), "environment": environment(past.plan.device)}
        self._head |= {"inputs": dict(read_summary(past.path)["inputs"])}
        self.beside: dict[str, Any] = {}
        self._read(take, beside)

    def append(self, line: Mapping[str, Any], beside: Mapping[str, Any] | None = None) -> None:
        """Writes a result; the first one gives what stands `beside`. Raises ShoalError: the file cannot be written."""
        self.beside = self.beside or dict(beside or {})
        try:
            # A line is one write, so that an end leaves whole ones, and a second command may write beside it.
            with self.path.open("ab", buffering=0) as file:
                head = [] if file.tell() else [sealed({**self._head, **self.beside})]
                file.write("".join(f"{text}\n" for text in (*head, sealed(line))).encode())
        except OSError as error:
            raise cannot_write(self.path, error) from None

    def _read(self, take: Callable[[Mapping[str, Any]], None], beside: Sequence[str]) -> None:
        try:
            lines = read_bytes(self.path).splitlines()
        except FileNotFoundError:
            return
        good, why = list[bytes](), "damaged"
        for line in lines:
            try:
                plain = unsealed(line)
                if good:
                    take(plain)
                else:
                    first = {key: plain.pop(key) for key in beside}
                    if plain != self._head:
                        why = "other content, software or machine"
                        break
                    self.beside = first
            except (ValueError, KeyError, TypeError):
                if not good:
                    break
                continue
            good.append(line)
        if len(good) == len(lines):
            return
        say(f"{self.path.name}: {len(lines) - len(good)} of {len(lines)} lines are dropped ({why}), and made again")
        with replacing(self.path) as unfinished:
            unfinished.write_bytes(b"".join(line + b"\n" for line in good))
