"""Features of texts: columns of a table of nodes, hashed word by word, or embedded once by an encoder.

Embeddings are written in blocks below the data root, so that a run that was ended goes on behind the last block; then
they are memory-mapped.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from shoal.storage.datasets.sources.derived import identity_digest, open_derived
from shoal.storage.datasets.sources.source import NGRAMS, DataSource, derived_root
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.files.digest import input_digest
from shoal.storage.options.types import is_own
from shoal.storage.progress import step
from shoal.storage.user_code.user_code import read_user_code

KEY = "data.options.encoder"
SENTENCES = "sentences:"
# So many texts are embedded and written at a time.
IN_BLOCK = 1024
Encode = Callable[[list[str]], Any]


def text_features(texts_of: Mapping[str, Sequence[str]], numbers_NF: np.ndarray | None, options: DataSource) -> Any:
    """Makes the features of nodes of their texts, behind their numbers, if they have any.

    Args:
        texts_of: Texts of all nodes, by column.
        numbers_NF: Float32 `[N, F]`.
        options: `encoder` and, of hashed words, `text_width` are read.

    Returns:
        Of hashed words a float32 SciPy CSR array `[N, F + width]`, else a memory map: float16, beside numbers float32.

    Raises:
        ShoalError: The encoder is not installed or none, fails, or gives something else than finite numbers.
    """
    texts = [" ".join(words) for words in zip(*texts_of.values(), strict=True)]
    if options.encoder == NGRAMS:
        hashed = _hashed(texts, options.text_width)
        return hashed if numbers_NF is None else sp.csr_array(sp.hstack([sp.csr_array(numbers_NF), hashed], "csr"))
    identity = {**encoder_identity(options), "texts": identity_digest({"texts": texts})}
    if numbers_NF is not None:
        identity["numbers"] = identity_digest({"numbers": numbers_NF.tolist()})
    folder = derived_root(options) / "texts" / identity_digest(identity)
    with open_derived(folder, identity):
        if not (folder / "x.npy").exists():
            _write(folder, list(_blocks(folder, texts, options)), numbers_NF)
        return np.load(folder / "x.npy", mmap_mode="r", allow_pickle=False)


def column_names(numbers: Sequence[str], width: int) -> np.ndarray:
    """Lists what the columns of features stand for: those of numbers, and then those of texts."""
    return np.array([*numbers, *(f"text {k}" for k in range(width - len(numbers)))])


def encoder_identity(options: DataSource) -> dict[str, Any]:
    """Identifies an encoder: its name, and the content of what it is made of, as far as that lies on this machine."""
    if options.encoder == NGRAMS:
        return {"encoder": NGRAMS, "width": options.text_width}
    if is_own(options.encoder):
        return {"encoder": read_user_code(KEY, options.encoder).identity}
    model = Path(options.encoder.removeprefix(SENTENCES)).expanduser()
    if not model.is_dir():
        return {"encoder": options.encoder, "version": _version()}
    files = sorted(path for path in model.rglob("*") if path.is_file())
    return {"encoder": {str(path.relative_to(model)): input_digest(path) for path in files}, "version": _version()}


def _version() -> str:
    try:
        return version("sentence-transformers")
    except PackageNotFoundError:
        return ""


def _hashed(texts: Sequence[str], width: int) -> sp.csr_array:
    """Counts words and pairs of words by their hash, each text of length 1."""
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(n_features=width, ngram_range=(1, 2), dtype=np.float32)
    hashed = sp.csr_array(vectorizer.transform(texts))
    hashed.sort_indices()
    return hashed


def _blocks(folder: Path, texts: list[str], options: DataSource) -> Iterator[Path]:
    """Embeds texts block by block, and yields the files; those that are there stay."""
    encode = _encoder(options.encoder)
    paths = [folder / f"block-{first // IN_BLOCK:06d}.npy" for first in range(0, len(texts), IN_BLOCK)]
    done = sum(path.exists() for path in paths)
    with step("embedding texts", len(texts), "texts", min(done * IN_BLOCK, len(texts))) as advance:
        for number, path in enumerate(paths):
            if not path.exists():
                block = texts[number * IN_BLOCK : (number + 1) * IN_BLOCK]
                with replacing(path) as unfinished, unfinished.open("wb") as sink:
                    np.save(sink, _checked(encode(block), len(block), options.encoder))
                advance(len(block))
            yield path


def _checked(given: Any, texts: int, encoder: str) -> np.ndarray:
    """Returns what an encoder gives of some texts, float16; raises a ShoalError where it is no such."""
    rows = np.asarray(given)
    if rows.ndim != 2 or len(rows) != texts or rows.dtype.kind not in "fiu":
        got = f"{rows.dtype} {list(rows.shape)}"
        raise ShoalError(KEY, f"{encoder} gives {got} for {texts} texts, expected numbers [{texts}, width]")
    with np.errstate(over="ignore"):
        rows_NW = rows.astype(np.float16)
    if not np.isfinite(rows_NW).all():
        raise ShoalError(KEY, f"{encoder} gives numbers that are not finite, or too large for float16")
    return rows_NW


def _write(folder: Path, blocks: Sequence[Path], numbers_NF: np.ndarray | None) -> None:
    """Joins blocks to one file, and removes them."""
    rows = [np.load(path, mmap_mode="r") for path in blocks]
    if len({block.shape[1] for block in rows}) > 1:
        raise ShoalError(KEY, f"gave rows of different widths; delete the folder {folder}")
    nodes, before = sum(map(len, rows)), 0 if numbers_NF is None else numbers_NF.shape[1]
    with replacing(folder / "x.npy") as unfinished:
        shape = (nodes, before + rows[0].shape[1])
        dtype = np.float16 if numbers_NF is None else np.float32
        x = np.lib.format.open_memmap(unfinished, mode="w+", dtype=dtype, shape=shape)
        if numbers_NF is not None:
            x[:, :before] = numbers_NF
        start = 0
        for block in rows:
            x[start : start + len(block), before:] = block
            start += len(block)
        x.flush()
    for path in blocks:
        path.unlink()


def _encoder(name: str) -> Encode:
    """Loads an encoder: a function of the user's own, or a model of sentence-transformers."""
    if is_own(name):
        code = read_user_code(KEY, name)
        function = code.function(KEY, "texts")

        def encode(texts: list[str]) -> Any:
            with code.at_work(KEY):
                return function(texts)

        return encode
    if not name.startswith(SENTENCES):
        raise ShoalError(KEY, f"expected {NGRAMS}, {SENTENCES}MODEL or my_file.py:encode, got {name!r}")
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise ShoalError(
            KEY, f"{name} needs sentence-transformers; pip install 'shoal[text]', or take {NGRAMS}"
        ) from None
    try:
        model = SentenceTransformer(name.removeprefix(SENTENCES), device="cpu")
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ShoalError(KEY, f"{name} cannot be loaded ({reason}); give the folder of a model here") from error
    return lambda texts: model.encode(texts, show_progress_bar=False, convert_to_numpy=True)
