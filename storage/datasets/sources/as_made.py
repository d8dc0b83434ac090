"""Whether arrays that were derived once are still as they were made."""

from collections.abc import Sequence
from pathlib import Path

from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.digest import digest
from shoal.storage.progress import step

NOTE = "contents.json"


class AsMade:
    """Digests of the files in a folder of derived arrays."""

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        """Reads what was noted of those that are there.

        Args:
            folder: Of the arrays.
            files: Their paths in it.

        Raises:
            ShoalError: The note is damaged.
        """
        self._folder, self._files = folder, files
        try:
            noted = unsealed((folder / NOTE).read_bytes())
        except FileNotFoundError:
            noted = {}
        except (OSError, ValueError) as error:
            raise ShoalError(
                f"{folder / NOTE}: cannot be read ({error}); delete the folder {folder}, and it is made again"
            ) from error
        # One that was deleted is made again, and noted anew.
        self._noted = {name: noted[name] for name in files if name in noted and (folder / name).exists()}

    def require(self) -> None:
        """Reads all files, compares those that were noted, and notes the others.

        Raises:
            ShoalError: One is not as it was made, or cannot be read.
        """
        found = dict(self._noted)
        with step(f"checking {self._folder.name}", len(self._files), "files") as advance:
            for name in self._files:
                path = self._folder / name
                try:
                    now = digest(path)
                except OSError as error:
                    raise ShoalError(f"{path}: cannot be read: {error.strerror}") from error
                if now != found.setdefault(name, now):
                    raise ShoalError(
                        f"{path}: not as it was made; delete the folder {self._folder}, and it is made again"
                    )
                advance(1)
        if found != self._noted:
            with replacing(self._folder / NOTE) as unfinished:
                unfinished.write_text(sealed(found))
