"""Makes a store from a graph: the partition, the shard of every client, and its split."""

import platform
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.engine.config.config import Config
from shoal.engine.preparing.alteration import Alteration, make_alterations
from shoal.engine.preparing.checks import read_graph
from shoal.engine.preparing.client_files import (
    PairsOf,
    ShardSource,
    SplitSource,
    draw_pairs,
    pairs_of_all,
    shards_bytes,
    write_shards,
    write_splits,
    write_training_shards,
)
from shoal.engine.preparing.identity import published_digests
from shoal.engine.preparing.store_steps import StoreSteps
from shoal.engine.records.graphs import places_of, sources
from shoal.engine.records.summary import count_distinct, describe_distinct
from shoal.engine.screen.progress import progress, say
from shoal.engine.screen.tables import abridge
from shoal.engine.sections.sections import describe_store, layout_of, list_store_changes
from shoal.partition.domains import first_clients
from shoal.partition.methods.cover import NO_CLIENT
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.methods.workspace import Workspace
from shoal.partition.partitioning import partition
from shoal.partition.quality import quality
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.files.disk import require_disk
from shoal.storage.graph.edges.kinds import Kinds
from shoal.storage.graph.gather import files_of, memory_of
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import kept_entries
from shoal.storage.graph.layout import chosen_layout
from shoal.storage.graph.pairs import LABELS, ONE, OTHER
from shoal.storage.graph.targets import Scale
from shoal.storage.options.masking import masks
from shoal.storage.options.split import SplitOptions, read_split_file, require_both_parts
from shoal.storage.options.target_names import CLASSIFICATION, REGRESSION
from shoal.storage.options.types import is_own
from shoal.storage.runner import Runner, parts, runner
from shoal.storage.shards.arrow_file import FileRecord, record_of, write, write_pack
from shoal.storage.shards.split import Split, random_split, split_columns, to_codes
from shoal.storage.store.client_table import SplitRecord, clients_a_pack, ranges
from shoal.storage.store.manifest import CopiesRecord, DomainRecord, Manifest
from shoal.storage.store.store import (
    ASSIGNMENT,
    DOMAINS,
    IDS,
    TRAINING,
    Store,
    shard_path,
    split_path,
    training_path,
)

# At most so many tasks of a machine read the whole graph; more would read more than they compute.
READERS = 16


class LazyGraph:
    """The graph of a config, which is read only if a step needs it."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @cached_property
    def graph(self) -> Graph:
        """The graph, read at the first use."""
        return read_graph(self._config)

    @cached_property
    def sides(self) -> np.ndarray:
        """The side of every node of a graph with two, int8 `[N]`."""
        from shoal.storage.graph.two_sides import sides_of

        return sides_of(self.graph)

    @cached_property
    def published(self) -> dict[str, str]:
        """Digests of the published files that the graph is read from; they may first be downloaded for it."""
        _ = self.graph
        return published_digests(self._config)


class StoreBuilder(StoreSteps):
    """A prepare of the store of a graph."""

    def __init__(
        self,
        path: Path,
        made: dict[str, Any],
        lazy: LazyGraph,
        options: PartitionOptions | None,
        config: Config,
        clients: Store | None = None,
    ) -> None:
        """Takes options of a partition, or None and a store of `clients`: the graph, or each domain, is a client."""
        self.lazy, self.options, self.clients = lazy, options, clients
        self.dtype = config.data.dtype
        self.memory_limit = config.engine.memory_limit or DataSource.memory_limit
        super().__init__(path, made, lambda: lazy.published, config)

    @property
    def _by_domain(self) -> bool:
        return bool(self.made["partition"]["method"] == DOMAINS)

    def assign(self, graph: Graph) -> np.ndarray:
        if self.options is None:
            if not self._by_domain:
                return np.zeros(graph.nodes, dtype=np.int32)
            from shoal.storage.datasets.domains import domain_of_nodes

            return domain_of_nodes(graph)
        options = self.options

        def write(path: Path) -> FileRecord:
            parts = options.of_parts.clients
            drawn = "" if options.overlap == 1 else f", which draw from {parts} parts, {options.overlap} from each"
            say(f"partition: {options.method} into {options.clients} clients{drawn}")
            workspace = Workspace(self.path, say, self.config.engine.memory_limit)
            workspace.clear()
            assignment = partition(graph, options, workspace=workspace)
            with replacing(path) as unfinished, unfinished.open("wb") as f:
                np.save(f, assignment)
            record = record_of(path)
            if self.writer.noted(ASSIGNMENT) not in (None, record):
                raise ShoalError(
                    path,
                    f"was lost or damaged, and the partition made again is another than the one that shards "
                    f"were made from; delete the folder {self.path} and run `shoal prepare` again",
                )
            return record

        self.writer.once(ASSIGNMENT, write)
        return np.load(self.path / ASSIGNMENT, allow_pickle=False)

    def _shards(self) -> Manifest:
        graph = self.lazy.graph
        _report(graph)
        of_user = str(self.config.data.dataset).lower() == "files" or is_own(str(self.config.data.dataset))
        if of_user and graph.split is not None and self.config.data.split != "public":
            say(f"data.split {self.config.data.split}: the split of the data is not read; public takes it")
        if masked := masks(self.made.get("sparsity", {})):
            say(f"sparsity: clients lack {masked}")
        for subject, text in describe_store(self.made).items():
            say(f"{subject}: {text}")
        if self.config.task == "edge" and self.clients is None:
            _report_sides(graph, self.lazy.sides)
        assignment = self.assign(graph)
        count = int(assignment.max()) + 1
        data = self.config.data
        layout = chosen_layout(graph.x, layout_of(self.config), data.dataset, data.path, self.dtype)
        pairs_only = self.config.task == "edge"
        holders = 1 if self.options is None else self.options.holders
        needed = int(holders * shards_bytes(graph, layout, self.dtype, pairs_only))
        require_disk(self.path, needed - self.writer.bytes_finished(shard_path(0).parent), "the shards")
        # Each whole graph has its own files. Files of a store that are made again lie in packs as before.
        pack = clients_a_pack(count, needed) if self.clients is None else 1
        pack = pack if self.old is None else self.old.pack
        missing = self.list_missing(shard_path, count, pack)
        clients = [client for group in missing for client in group]
        # A store of whole graphs is made from that of the clients, by this process alone.
        size = 0 if self.clients is not None else needed * len(clients) // count
        here = runner(size, self.path, files_of(graph))
        kept = _kept(graph, assignment, here)
        measured = quality(graph, assignment, count, kept).as_dict()
        # Nodes without a client go to one more client, and its shard is not made.
        assignment = np.where(assignment == NO_CLIENT, np.int32(count), assignment)
        label = np.full(graph.nodes, -1) if pairs_only else graph.of_nodes(graph.y)
        memory = memory_of(graph, assignment, kept, self.dtype, layout)
        # The columns of a pack stay in memory until it is written.
        of_pack = needed * pack // count if pack > 1 else 0
        room = here.room(memory.of_one(clients) + of_pack, self.memory_limit, READERS)
        source = ShardSource(
            self.path,
            replace(graph, ids=None),
            assignment,
            kept,
            label,
            layout,
            data,
            room.memory,
            self._pairs(graph),
            graph.target,
            self._alterations(graph, count),
        )
        groups = memory.groups(missing, room.memory, room.groups)
        self.make_files("shards", shard_path, count, here, write_shards, source, groups, room.memory)
        classes = LABELS if pairs_only else graph.classes
        table, values = self._clients(count, pack, classes)
        return Manifest(
            identity=self.made,
            name=graph.name,
            synthetic=graph.synthetic,
            nodes=graph.nodes,
            features=graph.features,
            classes=classes,
            dtype=self.dtype,
            cleaning=asdict(graph.cleaning),
            quality=measured,
            clients=table,
            published=self.lazy.published,
            layout=layout,
            feature_values=values,
            # A store of whole graphs needs no domains, since each is a client.
            domains=[] if self.options is None else _domains(graph, self.options),
            graphs=None if graph.graph_of is None else graph.items,
            pairs=int(table.count("items").sum()) if pairs_only else None,
            label_names=None if graph.label_names is None or pairs_only else list(graph.label_names),
            weighted=graph.edge_weight is not None,
            feature_names=None if graph.vocabulary is None or data.path is None else graph.vocabulary.tolist(),
            ids=self._ids(graph),
            target=CLASSIFICATION if graph.target is None else sources(self.config)[0].target,
            edge_features=graph.edge_features,
            edge_names=None if graph.edge_names is None else list(graph.edge_names),
            kinds=list(Kinds.of(graph.vocabulary, graph.edge_kinds)) if graph.edge_features else None,
            provenance={
                "places": places_of(self.config),
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "python": platform.python_version(),
                "numpy": np.__version__,
            },
        )

    def _ids(self, graph: Graph) -> FileRecord | None:
        """Keeps the ids of nodes, if they have any."""
        if graph.ids is None:
            return None
        return self.writer.once(IDS, lambda path: write(path, "ids", {"id": graph.ids}))

    def _pairs(self, graph: Graph) -> PairsOf | None:
        """Returns the function that makes the pairs of a client; None if items are no pairs."""
        if self.config.task != "edge":
            return None
        limit = self.config.memory_limit()
        if self.clients is None:
            return partial(draw_pairs, self.config.data, self.lazy.sides, limit)
        return partial(pairs_of_all, self.clients, graph.nodes, limit)

    def _alterations(self, graph: Graph, count: int) -> list[Alteration]:
        """Makes what features change of shards, of so many clients or of the whole graphs above them."""
        clients = self.clients
        if clients is None or not list_store_changes(self.config):
            return make_alterations(self.config, count, graph.classes, graph)
        client_of = np.full(graph.nodes, -1, dtype=np.int32)
        for client in range(clients.clients):
            client_of[clients.shard(client).node] = client
        return make_alterations(self.config, clients.clients, graph.classes, graph, client_of)

    def _training_labels(self, options: SplitOptions, items: int) -> np.ndarray | None:
        """Returns the label that the training of clients sees of every item, where it differs, for whole graphs."""
        if self.clients is None or not list_store_changes(self.config):
            return None
        label, differs = np.full(items, -1, dtype=np.int32), False
        for client in range(self.clients.clients):
            split, shard = self.clients.split(options.split_name, client), self.clients.shard(client)
            if split.train_label is not None:
                label[shard.item[split.train]] = split.train_label
                differs = True
        return label if differs else None

    def _splits(self, shards: Store, options: SplitOptions) -> SplitRecord:
        code = None if shards.manifest.pairs is not None else self._codes(shards, options)
        distinct = None
        if self.options is not None and self.options.overlap > 1:
            from shoal.engine.preparing.shared_split import share_split

            code, distinct = share_split(shards, self.options.of_parts.clients, options, code)
        what, place = shards.manifest.item_name, partial(split_path, options.split_name)
        sparsity = self.config.data.sparsity if self.clients is None else None
        packs, pack = ranges(shards.clients, shards.manifest.pack), shards.manifest.pack
        missing = self.list_missing(place, shards.clients, pack)
        manifest = shards.manifest
        of_clients = self.clients is None and manifest.pairs is None
        alterations = make_alterations(self.config, shards.clients, manifest.classes) if of_clients else []
        labels = self._training_labels(options, manifest.items)
        source = SplitSource(shards, frozenset(missing), options, code, sparsity, alterations, labels)
        sizes = [record.bytes for _, record in shards.manifest.clients.files.files()]
        here, memory = runner(sum(sizes), self.path, self.list_files_to_see(packs)), max(sizes)
        groups = parts(packs, here.room(memory, memory).groups)
        counts, unreachable = np.zeros((shards.clients, 3), dtype=np.int64), 0
        moments: dict[int, np.ndarray] = {}
        with progress("splits", shards.clients, "clients") as step:
            for clients, (file, of_each, beyond, of_targets) in here.results(write_splits, source, groups, memory):
                if file is not None:
                    self.writer.add(place(clients), file)
                counts[clients] = of_each
                unreachable += beyond
                if of_targets is not None:
                    moments[clients[0]] = of_targets
                step.advance(len(clients))
        for part, name in ((0, "training"), (2, "test")):
            if not counts[:, part].any():
                raise ShoalError(
                    f"data.split {options.split}: no client has a {name} {what}; change the split or use fewer clients"
                )
        # Packs may come in any order, and sums have the bits of one.
        numbers = shards.manifest.target == REGRESSION
        scale = Scale.of(np.sum([moments[first] for first in sorted(moments)], axis=0)) if numbers else None
        files = self.list_files(place, "split", shards.clients, pack)
        result = SplitRecord(counts, unreachable, files, scale=scale, distinct=distinct)
        _report_split(result, options, what)
        return result

    def _copies(self, shards: Store, options: SplitOptions, split: SplitRecord) -> CopiesRecord | None:
        # Only the dataset's own split has read the graph by now.
        if self.clients is not None or options.split != "public" or (copy_of := self.lazy.graph.copy_of) is None:
            return None
        total, most = np.zeros(copy_of.max() + 1, dtype=np.int64), []
        made = Store(self.path, manifest=replace(shards.manifest, splits={options.split_name: split}))
        for client in range(shards.clients):
            shard, train = shards.shard(client), made.split(options.split_name, client).train
            # Only items that are graphs can share nodes.
            assert shard.graph is not None
            counts = np.bincount(copy_of[shard.node[np.isin(shard.graph, shard.item[train])]], minlength=len(total))
            total += counts
            most.append(int(counts.max()))
        record = CopiesRecord(round(float(total[total > 0].mean()), 2), int(total.max()), most)
        say(
            f"a node lies in {record.mean:,.1f} training graphs on average and {record.most:,} at most, of one client "
            f"in {max(most):,} at most: what noise spends on one graph counts so many times for a node"
        )
        return record

    def _codes(self, shards: Store, options: SplitOptions) -> np.ndarray | None:
        """Returns the part of every item, int8 `[items]`, or None if each client draws its split."""
        manifest = shards.manifest
        given = partial(
            given_codes, options, manifest.name, manifest.items, lambda: self.lazy.graph.split, manifest.item_name
        )
        if self.clients is None:
            return given()
        code = np.zeros(manifest.items, dtype=np.int8)
        held = np.zeros(manifest.items, dtype=bool)
        for client in range(self.clients.clients):
            shard = self.clients.shard(client)
            code[shard.item] = to_codes(self.clients.split(options.split_name, client), shard.items)
            held[shard.item] = True
        # Only the evaluation of domains asks for the part of nodes that no client holds.
        if not self._by_domain or held.all():
            return code
        of_all = given()
        if of_all is not None:
            return np.where(held, code, of_all)
        # These nodes are drawn by the same protocol, as if each graph had one more client.
        for number in range(shards.clients):
            shard = shards.shard(number)
            item = shard.item
            free = np.flatnonzero(~held[item])
            drawn = random_split(shard.item_label[free], item[free], self.clients.clients + number, options)
            code[item[free]] = to_codes(drawn, len(free))
        return code


def _kept(graph: Graph, assignment: np.ndarray, here: Runner) -> np.ndarray:
    """Counts neighbours of every node inside its client, int32, of the shape of the assignment."""
    if assignment.ndim == 1:
        return kept_entries(graph.indptr, graph.indices, assignment, here)
    return np.stack([kept_entries(graph.indptr, graph.indices, client_N, here) for client_N in assignment])


def _domains(graph: Graph, options: PartitionOptions) -> list[DomainRecord]:
    several = zip(graph.domains, options.domains or (), first_clients(options))
    return [DomainRecord(domain.name, domain.nodes, [first, clients]) for domain, clients, first in several]


def given_codes(
    options: SplitOptions, dataset: str, items: int, of_dataset: Callable[[], np.ndarray | None], what: str = "node"
) -> np.ndarray | None:
    """Reads the part of every item, int8 `[items]`, of the user's file or of the dataset; None: each client draws it.

    `dataset` is its name and `what` that of an item in messages; `of_dataset` gives the dataset's split, if it has one.
    Raises ShoalError: a file is wrong or has another number of items, or the dataset has no split.
    """
    if options.split == "file":
        code = read_split_file(options.split_file)
        if len(code) != items:
            counts = f"{len(code)} entries for {items} {what}s"
            raise ShoalError(options.split_file, f"{counts} of {dataset}; give one each")
        return code
    if options.split == "public":
        code_of_dataset = of_dataset()
        if code_of_dataset is None:
            raise ShoalError(f"data.split public: {dataset} has no split of its own; take stratified or per_client")
        require_both_parts("data.split public", code_of_dataset)
        return code_of_dataset
    return None


def _report(graph: Graph) -> None:
    c = graph.cleaning
    kind = " (synthetic)" if graph.synthetic else ""
    graphs = "" if graph.graph_of is None else f"{graph.items:,} graphs, "
    unlabelled = int((graph.y < 0).sum())
    without = f" ({unlabelled:,} {graph.item_name}s without a label)" if unlabelled else ""
    say(
        f"{graph.name}{kind}: {graphs}{graph.nodes:,} nodes, {graph.entries // 2:,} undirected edges, "
        f"{graph.features} features, {graph.outputs}{without}; of {c.entries_read:,} entries read, "
        f"{c.self_loops:,} self loops and {c.duplicates:,} duplicates removed, "
        f"{c.reversed_added:,} missing reverses added"
    )
    if c.nodes_dropped:
        say(f"{c.nodes_dropped:,} nodes without one label were dropped when the graph was read")
    if graph.vocabulary is not None:
        say(f"features: {abridge(graph.vocabulary.tolist())}")
    for note in graph.notes:
        say(note)
    for domain in graph.domains:
        say(f"domain {domain.name}: {domain.nodes:,} nodes")


def _report_sides(graph: Graph, side: np.ndarray) -> None:
    from shoal.storage.graph.two_sides import sides_of

    if side.any():
        first, other = (int((side == part).sum()) for part in (ONE, OTHER))
        say(f"every edge joins one of {first:,} nodes and one of {other:,} others: so do pairs without an edge")
    elif sides_of(graph, cycles=0).any():
        say(
            "no odd cycle, but too few cycles to tell two kinds of nodes: pairs without an edge are of any two nodes, "
            "and if there are two kinds (users, items), pairs within a kind are easy to tell"
        )


def _report_split(split: SplitRecord, options: SplitOptions, what: str) -> None:
    train, val, test = split.counts.sum(axis=0)
    line = f"split {options.split_name}: {train:,} train, {val:,} validation, {test:,} test {what}s"
    if split.unreachable:
        line += f"; {split.unreachable:,} test {what}s of classes their client has no training {what} of"
    if shared := describe_distinct(count_distinct(split), what):
        line += f"; {shared}"
    if untrained := split.without_training:
        some = ", ".join(map(str, untrained[:8])) + (" …" if len(untrained) > 8 else "")
        line += f"; {len(untrained)} clients without a training {what} ({some})"
    say(line)


def made_from(clients: Store, split: str) -> dict[str, Any]:
    """Identifies the training nodes of a store's clients by the store's content and one of its splits."""
    content = clients.manifest.content(split, None)
    return {**clients.manifest.identity, TRAINING: {"split": split, "of": content}}


class TrainingBuilder(StoreSteps):
    """A prepare of a store of the training nodes of clients: the graphs that they induce, and hops on these."""

    def __init__(self, clients: Store, config: Config) -> None:
        """Takes the finished store of the clients, or of the whole graph as one, with the split of a config."""
        self.clients, self.split = clients, config.data.split_name
        path = clients.path / training_path(self.split)
        super().__init__(path, made_from(clients, self.split), lambda: clients.manifest.published, config)

    def _shards(self) -> Manifest:
        whole = self.clients.manifest
        share = whole.splits[self.split].counts[:, 0].sum() / max(1, whole.clients.count("nodes").sum())
        needed = int(share * whole.clients.files.total)
        require_disk(self.path, needed - self.writer.bytes_finished(shard_path(0).parent), "the training nodes")
        count = self.clients.clients
        missing = self.list_missing(shard_path, count, whole.pack)
        most = max(record.bytes for _, record in whole.clients.files.files())
        here = runner(
            whole.clients.files.total, self.path, [self.clients.path / shard_path(range(count)[: whole.pack])]
        )
        groups, given = parts(missing, here.room(2 * most, most).groups), (self.path, self.clients, self.split)
        self.make_files("training nodes", shard_path, count, here, write_training_shards, given, groups, 2 * most)
        table, values = self._clients(count, whole.pack, whole.classes)
        nodes, entries = (int(table.count(what).sum()) for what in ("nodes", "entries"))
        say(f"inductive: training sees {nodes:,} nodes and the {entries // 2:,} undirected edges among them")
        # The manifest keeps ids, classes and domains of all nodes.
        return replace(
            whole,
            identity=self.made,
            clients=table,
            splits={},
            hops={},
            ids=None,
            feature_values=values if whole.layout == "sparse" else 0,
        )

    def _splits(self, shards: Store, options: SplitOptions) -> SplitRecord:
        none, nodes = np.zeros(0, dtype=np.int32), shards.manifest.clients.count("nodes")
        place, pack = partial(split_path, options.split_name), shards.manifest.pack
        for clients in ranges(shards.clients, pack):
            splits = (Split(np.arange(count, dtype=np.int32), none, none) for count in nodes[clients])
            self.writer.once(place(clients), partial(write_pack, kind="split", clients=map(split_columns, splits)))
        counts = np.stack([nodes, 0 * nodes, 0 * nodes], axis=1)
        return SplitRecord(counts, 0, self.list_files(place, "split", shards.clients, pack))
