"""Packages that some commands and configs do without: what to say where one is missing."""

# By the name that is imported: the package, and a way that does not need it.
SPARED: dict[str, tuple[str, str]] = {
    "ray": ("ray", "engine.backend=local"),
    "torch_geometric": ("torch-geometric", "models that read hops, on other data than cora, citeseer and pubmed"),
    "pymetis": ("pymetis", "another partition.method"),
    "kaminpar": ("kaminpar", "another partition.method"),
    "networkit": ("networkit", "another partition.method"),
    "faiss": ("faiss-cpu", "clients of fewer nodes"),
    "sklearn": ("scikit-learn", "another dataset or metric"),
    "tensorboard": ("tensorboard", "run.tensorboard=false"),
    "matplotlib": ("matplotlib", "no report"),
}


def way_out(error: ModuleNotFoundError) -> str | None:
    """One line about a package that is missing; None: it is none of these."""
    name = (error.name or "").partition(".")[0]
    if name not in SPARED:
        return None
    package, without = SPARED[name]
    return f"the package {package} is not installed; pip install {package}, or do without it: {without}"
