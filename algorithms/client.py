"""One client during its visit to a host: its sizes, its data, its state, and its models.

`ClientModel` is one of its models on its data, and `FlatModel` the host's model behind it.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.algorithms.models.inputs.masked_features import smoothed_hops, smoothing_pays
from shoal.algorithms.models.inputs.neighbourhood import (
    DrawnInputs,
    Gathered,
    Inputs,
    all_nodes,
    kept_rows,
    receptive_field,
    sample_neighbourhood,
    standalone,
)
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.models.layers.readout import Adapted, PairEmbedding, Readout
from shoal.algorithms.models.prompts.prompts import Prompted
from shoal.algorithms.protocol import MODEL, Tree
from shoal.algorithms.rng import generator_on
from shoal.storage.shards.view import View
from shoal.storage.store.manifest import count_of_items

if TYPE_CHECKING:
    from shoal.algorithms.models.compiled.passes import Passes
    from shoal.algorithms.models.items.augmented_nodes import AugmentedNodes
    from shoal.algorithms.models.items.client_graphs import ClientGraphs, ClientPairs

# A line of the cache holds so many numbers of float32.
CACHE_LINE = 16


class FlatModel:
    """A backbone over one flat parameter vector: loaded, sent and averaged as a whole, built once and reset in place.

    Attributes:
        module: The backbone; its parameters are views of `w`.
        parameters: Those of the module that lie in `w`, in this order: all but frozen ones.
        w: All parameters, float32 `[P]`, a leaf; its gradient and the parameters' gradients share memory, so that a
            penalty on `w` and the loss of the model add up.
        bfloat16: Layers multiply in bfloat16; parameters, outputs and losses stay float32.
        sparse: Features are sparse: weights `[H, F]` that they are multiplied by lie in `w` column by column.
        frozen: Parameters without a gradient are constants.
    """

    def __init__(self, module: nn.Module, bfloat16: bool = False, sparse: bool = False, frozen: bool = False) -> None:
        """Moves the parameters of a module into one vector, in the order of `module.parameters()`."""
        self.module, self.bfloat16, self.sparse, self.frozen = module, bfloat16, sparse, frozen
        # Looking for them takes a tenth of a small client's step.
        self.parameters = parameters = [p for p in module.parameters() if p.requires_grad or not frozen]
        self._by_column = {id(p) for p in self._first_weights()} if sparse else set()
        ordered = [p.t() if id(p) in self._by_column else p for p in parameters]
        # `torch.cat` and `zeros_like` of shapes without values would load torch's compiler, which takes a second.
        values = ordered[0].detach().new_empty(sum(p.numel() for p in ordered))
        for p, part in zip(ordered, values.split([p.numel() for p in ordered])):
            part.view(p.shape).copy_(p.detach())
        flat = self._room_for(values).copy_(values) if sparse else values
        gradient = self._room_for(values).zero_() if sparse else values.new_zeros(len(values))
        for p, data, grad in zip(parameters, self.parts(flat), self.parts(gradient)):
            p.data, p.grad = data, grad
        self.w = nn.Parameter(flat)
        self.w.grad = gradient

    @cached_property
    def backbone(self) -> nn.Module:
        """The innermost module, which embeds nodes: no wrapper has part in it."""
        inner = self.module
        while isinstance(inner, Adapted | Prompted | Readout | PairEmbedding):
            inner = inner.backbone
        return inner

    def _first_weights(self) -> Sequence[nn.Parameter]:
        return getattr(self.backbone, "first_weights", list)()

    def _room_for(self, values: Tensor) -> Tensor:
        """Makes an empty vector of as many values, whose first weight by column starts at a cache line."""
        before = sum(p.numel() for p in takewhile(lambda p: id(p) not in self._by_column, self.parameters))
        room = values.new_empty(len(values) + CACHE_LINE)
        start = -(room.data_ptr() // values.element_size() + before) % CACHE_LINE
        return room[start : start + len(values)]

    def parts(self, w: Tensor) -> Iterator[Tensor]:
        """Views of vectors `[…, P]` in the shapes of the parameters, `[…, *shape]`, in their order."""
        # The way back of one split is one operator; that of slices would be two for each parameter.
        rows, turned = w.shape[:-1], self._by_column
        for p, part in zip(self.parameters, w.split([p.numel() for p in self.parameters], -1)):
            yield part.view(rows + p.shape[::-1]).mT if id(p) in turned else part.view(rows + p.shape)

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Hops that the backbone reads."""
        return tuple(self.module.inputs)  # type: ignore[arg-type]

    @cached_property
    def coupled(self) -> Coupled | None:
        """The backbone, if it passes messages along edges; None if it reads rows of the hops."""
        inner = self.backbone
        return inner if isinstance(inner, Coupled) else None

    @property
    def prompted(self) -> bool:
        """Whether a prompt changes graphs before the backbone reads them."""
        return any(isinstance(module, Prompted) for module in self.module.modules())

    @property
    def reads_items(self) -> bool:
        """Whether it answers for whole graphs, or for pairs of nodes, and not for nodes."""
        return any(isinstance(module, Readout | PairEmbedding) for module in self.module.modules())

    @property
    def classifier(self) -> slice:
        """Finds weight, row by row, and bias of the last linear layer in `w`, `[C H + C]`; then `Head.messages`.

        The weight lies column by column where the model has no body and features are sparse.
        """
        weight, bias = self._classifier()
        start = sum(p.numel() for p in takewhile(lambda p: p is not weight, self.parameters))
        return slice(start, start + sum(p.numel() for p in (weight, bias, *self._messages())))

    @property
    def classifies_by_weight(self) -> bool:
        """Whether the classifier has no parameters but a weight `[C, H]` and a bias `[C]`."""
        return not self._messages()

    def _messages(self) -> list[nn.Parameter]:
        messages = self.module.head.messages  # type: ignore
        return [] if messages is None else list(messages.parameters())  # type: ignore

    @property
    def has_body(self) -> bool:
        """Whether a layer, or messages along edges, lie between the features and the classifier."""
        return all(p is not self._classifier()[0] for p in self._first_weights())

    def _classifier(self) -> tuple[nn.Parameter, nn.Parameter]:
        last = self.module.head.linears[-1]  # type: ignore
        return last.get_parameter("weight"), last.get_parameter("bias")  # type: ignore

    def set_training(self, training: bool) -> None:
        """Sets the mode of the module, as its `train` and `eval` do, which look for all parts of it each time."""
        if self.module.training != training:
            if self._modules is None:
                self.module.train(training)
            for module in self._modules or ():
                module.__dict__["training"] = training

    @cached_property
    def _modules(self) -> list[nn.Module] | None:
        """All parts of the module; None: one of them changes its mode in a way of its own."""
        modules = list(self.module.modules())
        plain = all(type(m).train is nn.Module.train and type(m).eval is nn.Module.eval for m in modules)
        return modules if plain and len({m.training for m in modules}) == 1 else None

    def on(self, device: torch.device) -> "FlatModel":
        """Copies the model to a device."""
        return FlatModel(copy.deepcopy(self.module).to(device), self.bfloat16, self.sparse, self.frozen)

    def load(self, w: Tensor) -> None:
        """Overwrites all parameters, `[P]`; a ValueError where they are of another shape."""
        self.require_shape(w)
        self.w.detach().copy_(w)

    def require_shape(self, w: Tensor) -> None:
        """Raises a ValueError for a vector that has not the shape of the parameters, `[P]`."""
        if w.shape != self.w.shape:
            raise ValueError(f"parameters of shape {list(w.shape)}, the model has {list(self.w.shape)}")

    def initial(self, seed: int) -> Tensor:
        """Draws fresh parameters, `[P]`; the model keeps them."""
        with torch.random.fork_rng(devices=[]):
            # Seeding all devices formats the stack of calls, where there is none but the processor.
            (torch.default_generator if self.w.device.type == "cpu" else torch).manual_seed(seed)
            with self._by_row():
                self.module.reset_parameters()  # type: ignore[operator]
        return self.w.detach().clone()

    @contextmanager
    def _by_row(self) -> Iterator[None]:
        """Lays all parameters row by row inside the block, so that the same seed draws the same values for any data."""
        turned = [p for p in self.parameters if id(p) in self._by_column]
        views = [p.data for p in turned]
        for p in turned:
            p.data = p.data.contiguous()
        yield
        for p, view in zip(turned, views):
            p.data = view.copy_(p.data)

    @cached_property
    def passes(self) -> "Passes | None":
        """Compiled passes of the model; None: its class is not traced, it reads dense rows, or it lies on a GPU."""
        if not vars(type(self.module)).get("traced") or (self.coupled is None and not self.sparse):
            return None
        if self.w.device.type != "cpu" or self.bfloat16:
            return None
        # Other models load none of it.
        from shoal.algorithms.models.compiled.passes import Passes

        return Passes(self.module, self.w, self.parts)

    def __call__(self, inputs: Inputs | DrawnInputs) -> Output:
        if isinstance(inputs, DrawnInputs) and not (self.passes is not None and self.passes.draws):
            inputs = inputs.take()
        if not self.bfloat16:
            compiled = None if self.passes is None else self.passes.output(inputs)
            return self.module(inputs) if compiled is None else compiled
        with self.precision():
            return Output(*(x.float() for x in self.module(inputs)))

    def precision(self) -> AbstractContextManager[None]:
        """Lets the module multiply as `bfloat16` says, inside the block."""
        return torch.autocast(self.w.device.type, torch.bfloat16, enabled=self.bfloat16)


# Outputs of so many rows stay in a processor's cache; a GPU is given more at once.
ROWS_AT_A_TIME = 4096
ROWS_ON_GPU = 65_536


class ClientModel:
    """The host's model of one kind, holding this client's parameters.

    Borrowed or taken parameters are copied into the host's model when that is first used: a client that trains in one
    batch with others may never use it.

    Attributes:
        pattern: The host's model, whatever parameters it has at the moment: for its structure.
        data: View of the client's shard.
        items: What is predicted: its graphs, its pairs of rows, its rows in an augmented graph (`answer_in`), or, None,
            its rows in the graph of its shard.
        random: Seed of a purpose, from (run seed, round, client, model, purpose).
        received: The method replaced the parameters since the client was visited.
    """

    def __init__(self, flat: FlatModel, data: View, random: Callable[[str], int], w: Tensor | None = None) -> None:
        """Begins with borrowed parameters `[P]`, or with those that the host's model has now."""
        self.pattern, self.data, self.random = flat, data, random
        # Parameters that the host's model does not have yet, and whether they are the client's own memory.
        self._waiting: Tensor | None = None
        self._is_own = False
        self._logits: Tensor | None = None
        if w is not None:
            self.borrow(w)
        self.received = False
        self.items: ClientGraphs | ClientPairs | AugmentedNodes | None = None
        if not data.items_are_rows:
            from shoal.algorithms.models.items import client_graphs as items

            if data.graph_ptr is not None:
                self.items = items.ClientGraphs(data, data.graph_ptr, flat.inputs, flat.coupled, flat.prompted)
            elif data.pairs is not None:
                self.items = items.ClientPairs(data, data.pairs, flat.inputs, flat.coupled)

    @property
    def flat(self) -> FlatModel:
        """The host's model with this client's parameters; the next client of a cell trains in the same memory."""
        self.flush()
        return self.pattern

    def flush(self) -> None:
        """Copies parameters that the host's model does not have yet into it."""
        if self._waiting is not None:
            self.pattern.load(self._waiting)
            self._waiting = None

    @property
    def w(self) -> Tensor:
        """The current parameters, `[P]`: the memory of the host's model, or of what was taken."""
        if self._waiting is not None and self._is_own:
            return self._waiting
        return self.flat.w.detach()

    @property
    def values(self) -> Tensor:
        """The current parameters, `[P]`, to be read before anything changes, wherever they lie."""
        return self.pattern.w.detach() if self._waiting is None else self._waiting

    @property
    def module(self) -> nn.Module:
        """The backbone, its parameters being views of `w`."""
        return self.flat.module

    @property
    def coupled(self) -> Coupled | None:
        """The backbone, if it passes messages along edges; None if it reads rows of the hops."""
        return self.pattern.coupled

    def __call__(self, inputs: Inputs | DrawnInputs) -> Output:
        """Output in the present mode, with gradients."""
        return self.flat(inputs)

    def load(self, w: Tensor) -> None:
        """Replaces the parameters, `[P]`."""
        self._waiting = None
        self.pattern.load(w)
        self.received = True
        self._logits = None

    def borrow(self, w: Tensor) -> None:
        """Replaces the parameters by a vector `[P]` that does not change."""
        self._replace(w, is_own=False)

    def take(self, w: Tensor) -> None:
        """Replaces the parameters by a vector `[P]` that is this client's alone from now on."""
        self._replace(w, is_own=True)

    def _replace(self, w: Tensor, is_own: bool) -> None:
        self.pattern.require_shape(w)
        # Parameters may travel in half the bytes; products are computed with all of them in one type.
        self._waiting, self._is_own = w.to(self.pattern.w.dtype), is_own
        self.received = True
        self._logits = None

    def snapshot(self) -> Tensor:
        """Returns the current parameters, `[P]`, which the next client leaves as they are; not to be written to."""
        return self.flat.w.detach().clone() if self._waiting is None else self._waiting

    def answer_in(self, augmented: Any) -> None:
        """Trains, and answers for the client's nodes, in an `AugmentedNodes`, until the end of the visit."""
        self.items = augmented
        self._logits = None

    def drop_logits(self) -> None:
        """Drops logits of the parameters before they changed in place."""
        self._logits = None

    def gathered(self, part: str, dtype: torch.dtype = torch.float32) -> Gathered:
        """Gathers what the model reads to answer for the items of `train`, `val` or `test`, or for all items (`all`).

        A decoupled model reads these rows of its hops, float32, contiguous, kept on the host; a coupled one the whole
        graph, or for training the part that training rows depend on. Where items are graphs or pairs, it reads these
        alone. Dense rows that are kept may have another `dtype`.
        """
        if self.items is not None:
            return self.items.all() if part == "all" else self.items.part(part)
        rows: Tensor | None = None if part == "all" else getattr(self.data, part)
        if (coupled := self.coupled) is not None:
            if part == "train" and coupled.row_by_row:
                return receptive_field(self.data, coupled.operator, coupled.depth)
            return all_nodes(self.data, coupled.operator, coupled.depth)._replace(rows=rows)
        mapped = self.data.device.type == "cpu" and self.data.x.dtype == torch.float32
        if rows is None or (mapped and len(rows) == self.data.nodes):
            # All rows are read, in their order: they lie in the map already.
            return [self.data.whole(k) for k in self.pattern.inputs]
        kept = (part, *([] if dtype == torch.float32 else [dtype]))
        return [self.data.cache((*kept, k), partial(kept_rows, self.data, k, rows, dtype)) for k in self.pattern.inputs]

    @property
    def answered(self) -> bool:
        """Whether logits of all items are at hand for the current parameters."""
        return self._logits is not None

    def logits(self) -> Tensor:
        """Computes logits of all items in evaluation mode, float32 `[items, C]`; once for the current parameters."""
        if self._logits is None:
            inputs = self.at_once(self.data.nodes)
            outputs = self.outputs() if inputs is None else [self.output(inputs)]
            self._logits = torch.cat([out.logits_NC for out in outputs])
        return self._logits

    def logits_of(self, part: str) -> Tensor:
        """Returns logits of the items of `train`, `val` or `test`, float32 `[items, C]`."""
        items: Tensor = getattr(self.data, part)
        # A part of one graph needs all its nodes, a part of several graphs only theirs.
        one_pass = self.coupled is not None if self.items is None else self.items.one_pass
        if self._logits is None and not one_pass:
            inputs = self.at_once(len(self.data.val) + len(self.data.test))
            if inputs is None:
                return self.output(self.gathered(part)).logits_NC
            self._logits = self.output(inputs).logits_NC
        return self.logits()[items]

    def at_once(self, rows: int) -> Inputs | None:
        """Makes what one pass over all nodes reads; None: it takes longer than one over so many rows of stored hops."""
        flat, data, hops = self.pattern, self.data, self.pattern.inputs
        if self.items is None and (coupled := self.coupled) is not None:
            return all_nodes(data, coupled.operator, coupled.depth)
        one_weight = getattr(flat.backbone, "one_weight", False)
        if self.items is not None or flat.bfloat16 or flat.prompted or not one_weight:
            return None
        # A visit need not count the same numbers again.
        pays = data.cache(("smoothing pays", hops, rows), partial(smoothing_pays, data, hops, rows))
        return smoothed_hops(data, hops) if pays else None

    def outputs(self) -> Iterator[Output]:
        """Computes outputs for all items in evaluation mode, without gradients; rows of hops a block at a time."""
        rows = ROWS_AT_A_TIME if self.data.device.type == "cpu" else ROWS_ON_GPU
        if self.items is not None:
            yield from map(self.output, self.items.successive(rows))
            return
        if (coupled := self.coupled) is not None:
            out = self.output(all_nodes(self.data, coupled.operator, coupled.depth))
            # The pass is over the whole graph, so that scores after it need no second one.
            self._logits = out.logits_NC
            yield out
            return
        # A client without a node gets one block, too: where it trains on none, training may see none.
        for start in range(0, max(self.data.nodes, 1), rows):
            yield self.output([self.data.block(k, start, start + rows) for k in self.pattern.inputs])

    def output(self, inputs: Inputs) -> Output:
        """Computes the output in evaluation mode, without gradients, for the result of `gathered` or rows of it."""
        self.flat.set_training(False)
        with torch.no_grad():
            return self.flat(inputs)

    def forward(self, rows: Tensor) -> Callable[[], Output]:
        """Prepares the model on some items, in its present mode and with gradients; its inputs are drawn once."""
        inputs = self.some(rows)
        return lambda: self.flat(inputs)

    def some(self, rows: Tensor) -> Inputs:
        """Gathers what the model reads to answer for some items in training; draws neighbours if it samples."""
        if self.items is not None:
            return self.items.some(rows)
        if (coupled := self.coupled) is None:
            return [self.data.rows(k, rows) for k in self.pattern.inputs]
        if coupled.fanouts:
            rng = np.random.default_rng(self.random("neighbours of some rows"))
            return sample_neighbourhood(self.data, coupled.operator, coupled.fanouts, rows, rng)
        return all_nodes(self.data, coupled.operator, coupled.depth)._replace(rows=rows)

    def standalone(self, x_NF: Tensor) -> Inputs:
        """Makes what the model reads of nodes whose neighbours, at every hop, have the features of the node itself."""
        if self.items is not None:
            return self.items.standalone(x_NF)
        if (coupled := self.coupled) is not None:
            return standalone(x_NF, coupled.operator, coupled.depth)
        return [x_NF] * len(self.pattern.inputs)


@dataclass(frozen=True)
class ClientInfo:
    """The sizes of a client that the server knows, too.

    Attributes:
        client: Number of the client.
        nodes: Rows of its shard.
        train: Training items: rows, graphs, or pairs of rows.
        classes: Number of classes C of the federation.
        model: Which of the run's models it trains.
        graphs: Graphs of its shard, where graphs are what is predicted.
        pairs: Pairs of its rows, where pairs are. Both None: its rows are.
        domain: Number of the graph that it comes from, where there are several.
        graphs_of_node: The most training graphs, of all clients, that one node lies in, where all are cut out of one
            graph; None: not known.
    """

    client: int
    nodes: int
    train: int
    classes: int
    model: int = 0
    graphs: int | None = None
    pairs: int | None = None
    domain: int = 0
    graphs_of_node: int | None = None

    @cached_property
    def items(self) -> int:
        """The number of predictions: rows, graphs, or pairs."""
        return count_of_items(self.nodes, self.graphs, self.pairs)

    @property
    def items_are_rows(self) -> bool:
        """Whether what is predicted are its nodes."""
        return self.graphs is None and self.pairs is None


class ClientTable(Sequence[ClientInfo]):
    """The `ClientInfo` of all clients N, in columns: `nodes`, `train`, `model` and `items`, int64 `[N]`, among them."""

    def __init__(
        self, columns: Mapping[str, Sequence[int] | np.ndarray], classes: int, graphs_of_node: int | None = None
    ) -> None:
        """Takes columns by the names of `ClientInfo`, all that differ; `graphs` and `pairs` where clients have them."""
        self._same: dict[str, Any] = {"classes": classes, "graphs_of_node": graphs_of_node}
        self._columns = {name: np.array(values, dtype=np.int64) for name, values in columns.items()}
        # Those that were asked for last are kept: made anew at each visit they took 2 % of a round of Cora.
        self._made: dict[int, ClientInfo] = {}

    @classmethod
    def of(cls, infos: Sequence[ClientInfo]) -> "ClientTable":
        """Builds a table of clients that agree in what they know of all."""
        if isinstance(infos, ClientTable):
            return infos
        first = infos[0]
        names = [name for name in COLUMNS if getattr(first, name) is not None]
        columns = {name: [getattr(info, name) for info in infos] for name in names}
        return cls(columns, first.classes, first.graphs_of_node)

    def followed_by(self, others: Sequence[ClientInfo]) -> "ClientTable":
        """Appends other clients, whose numbers follow those of this table."""
        if not others:
            return self
        more = ClientTable.of(others)._columns
        joined = {name: np.concatenate([values, more[name]]) for name, values in self._columns.items()}
        return ClientTable(joined, **self._same)

    def without_training(self, clients: Sequence[int]) -> "ClientTable":
        """Copies the table without the training items of some clients."""
        train = self._columns["train"].copy()
        train[list(clients)] = 0
        return ClientTable({**self._columns, "train": train}, **self._same)

    def without_sizes(self) -> "ClientTable":
        """Copies the table so that data count for nothing: every client has two items, of which one trains.

        A server that hides clients knows no more of them.
        """
        same = {"nodes": 2, "train": 1, "graphs": 2, "pairs": 2}
        columns = {
            name: np.full(len(self), same[name]) if name in same else column for name, column in self._columns.items()
        }
        return ClientTable(columns, self._same["classes"])

    @property
    def train(self) -> np.ndarray:
        """The training items of every client."""
        return self._columns["train"]

    @property
    def model(self) -> np.ndarray:
        """Numbers of their models."""
        return self._columns["model"]

    @cached_property
    def items(self) -> np.ndarray:
        """The number of predictions of every client."""
        return next(self._columns[name] for name in ("pairs", "graphs", "nodes") if name in self._columns)

    @cached_property
    def cost(self) -> np.ndarray:
        """The work of a visit, relative to other clients', float64 `[N]`."""
        nodes, train = self._columns["nodes"], self._columns["train"]
        return nodes + 10 * train * nodes / np.maximum(self.items, 1)

    def __len__(self) -> int:
        return len(self._columns["nodes"])

    def __iter__(self) -> Iterator[ClientInfo]:
        for values in zip(*(column.tolist() for column in self._columns.values())):
            yield ClientInfo(**dict(zip(self._columns, values)), **self._same)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[number] for number in range(len(self))[place]]
        if (info := self._made.get(place)) is None:
            if len(self._made) >= MOST_MADE:
                self._made.clear()
            numbers = {name: int(values[place]) for name, values in self._columns.items()}
            info = self._made[place] = ClientInfo(**numbers, **self._same)
        return info


COLUMNS = ("client", "nodes", "train", "model", "graphs", "pairs", "domain")
MOST_MADE = 4096


@dataclass
class Client:
    """A client while it is on a host.

    Attributes:
        info: Sizes.
        data: View of its shard.
        models: Its models by the names that the method gives them.
        state: What it keeps between rounds, a private copy: parameters and moments of models under `parameters_key` and
            `moments_key`, which the engine writes, and anything else that the method does.
        inbox: Results of `Mix` addressed to it since its last visit, read-only, until newer ones replace them.
        random: Seed of a purpose, from (run seed, round, client, purpose).
    """

    info: ClientInfo
    data: View
    models: Mapping[str, ClientModel]
    state: Tree
    inbox: Tree
    random: Callable[[str], int]

    @property
    def model(self) -> ClientModel:
        """The client's model; if it has several, the one of the config's `model`."""
        return self.models[MODEL]

    def rng(self, purpose: str) -> torch.Generator:
        """Makes a random stream for a purpose of the visit."""
        return generator_on(self.data.device).manual_seed(self.random(purpose))
