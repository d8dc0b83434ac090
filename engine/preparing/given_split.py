"""A split that is given and not drawn: of a user's file, or of the dataset."""

from collections.abc import Callable

import numpy as np

from storage.errors import ShoalError
from storage.split import SplitOptions, read_split_file


def given_codes(
    options: SplitOptions, dataset: str, nodes: int, of_dataset: Callable[[], np.ndarray | None]
) -> np.ndarray | None:
    """Part of every node, int8 `[nodes]`, or None where each client draws its own.

    Args:
        options: Which split.
        dataset: Its name in error messages.
        nodes: Number of its nodes.
        of_dataset: Gives the dataset's own split; called only if that is asked for.

    Raises:
        ShoalError: The file is wrong or of another number of nodes, or the dataset has no split.
    """
    if options.split == "file":
        code = read_split_file(options.split_file)
        if len(code) != nodes:
            raise ShoalError(f"{options.split_file}: {len(code)} entries for {nodes} nodes of {dataset}; give one each")
        return code
    if options.split == "public":
        code_of_dataset = of_dataset()
        if code_of_dataset is None:
            raise ShoalError(f"data.split public: {dataset} has no split of its own; take stratified or per_client")
        return code_of_dataset
    return None
