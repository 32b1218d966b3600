"""PipeDream's `graph.txt`, in its own dialect and in DAPPLE's.

A node is a line `node12 -- Conv2d(...) -- forward_compute_time=10.8, backward_compute_time=18.3,
activation_size=411041792.0, parameter_size=1180672.0`, perhaps with ` -- stage_id=2` behind; an
edge is an indented `node11 -- node12` (a tab in PipeDream's files, spaces in DAPPLE's). Times are
milliseconds and sizes bytes, both per profiled minibatch, whose size the file does not state.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from autoplan.errors import InputError, words
from autoplan.workload.graph import Graph, Tensor
from autoplan.workload.model import Workload
from autoplan.workload.readers.base import (
    LARGEST_AMOUNT,
    Costs,
    Document,
    ReadOptions,
    scale_for,
    workload_of,
)

_COSTS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_STAGE = re.compile(r"stage_id=\d+", re.ASCII)
_SELECTOR = "__getitem__"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A node line."""

    id: str
    description: str
    forward_ms: float
    backward_ms: float
    activation_bytes: float
    parameter_bytes: float

    @property
    def label(self) -> str:
        """The id and what kind of layer it is, without its arguments."""
        return f"{self.id} {self.description.split('(')[0].strip()}".strip()


@dataclass(slots=True)
class _File:
    """What the lines hold: nodes by id, and for each node those that it feeds and is fed by."""

    nodes: dict[str, _Node] = field(default_factory=dict)
    targets: dict[str, list[str]] = field(default_factory=dict)
    sources: dict[str, list[str]] = field(default_factory=dict)

    def without(self, dropped: set[str]) -> _File:
        """The same without some nodes and their edges."""

        def kept(edges: dict[str, list[str]]) -> dict[str, list[str]]:
            return {
                node: [other for other in others if other not in dropped]
                for node, others in edges.items()
                if node not in dropped
            }

        nodes = {name: node for name, node in self.nodes.items() if name not in dropped}
        return _File(nodes=nodes, targets=kept(self.targets), sources=kept(self.sources))


class PipeDreamReader:
    """`graph.txt` profiles of PipeDream and DAPPLE.

    `Input` nodes are dropped with what they feed: they carry the time of loading data (636 of
    alexnet's 681 ms forward), and every stage loads what it needs of the input itself.
    `__getitem__` nodes are selectors, not layers: they join the layer whose list they select from,
    and each selected element becomes a tensor of its own, so that no byte of the list is counted
    twice. A layer's stash is its activation.
    """

    format = "PipeDream or DAPPLE graph.txt"

    def matches(self, document: Document) -> bool:
        """Whether some line has a node's costs."""
        return document.value is None and f" -- {_COSTS[0]}=" in document.text

    def read(self, document: Document, options: ReadOptions) -> Workload:
        """Builds the workload; without `options.batch_size` a sample is a whole minibatch."""
        whole = _parse(document.text)
        dropped = _inputs(whole)
        file = whole.without(dropped)
        if not file.nodes:
            raise InputError("nodes", words("none but Input nodes"), "at least one layer")
        owners = _owners(file)
        costs = _costs(file, owners)
        scale, notes = scale_for(list(costs.values()), "ms", options)
        names = {node: entry.name for node, entry in costs.items()}
        graph = Graph(
            layers=tuple(scale.layer(entry) for entry in costs.values()),
            tensors=_tensors(file, owners, names, scale.samples),
        )
        return workload_of(
            graph,
            document,
            sample=_sample(options),
            notes=(*notes, *_notes(whole, dropped, len(file.nodes) - len(costs), options)),
        )


def _sample(options: ReadOptions) -> str:
    if options.batch_size:
        return "one sample"
    return "one profiled minibatch (batch size not in the file)"


def _notes(whole: _File, dropped: set[str], selectors: int, options: ReadOptions) -> list[str]:
    """What was assumed and left out."""
    notes = []
    if options.batch_size:
        notes.append(f"measured at one size, {options.batch_size} samples, as declared")
    else:
        notes.append(
            "the file does not state its batch size: one sample is one profiled minibatch; "
            "declare batch_size to plan in samples"
        )
    if dropped:
        time = sum(whole.nodes[n].forward_ms + whole.nodes[n].backward_ms for n in dropped)
        names = ", ".join(sorted(dropped))
        notes.append(f"left out as data loading, {time:g} of the file's time: {names}")
    if selectors:
        notes.append(f"{selectors} __getitem__ nodes joined with the layers they select from")
    return notes


def _parse(text: str) -> _File:
    """Reads all lines; edges may come before the nodes that they join."""
    file, edges = _File(), []
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"line {number}"
        if not line.strip():
            continue
        if line[0] in "\t ":
            edges.append((where, _edge(line, where)))
            continue
        node = _node(line, where)
        if node.id in file.nodes:
            raise InputError(where, node.id, "each node once")
        file.nodes[node.id] = node
    file.nodes = dict(sorted(file.nodes.items(), key=lambda item: _rank(item[0])))
    file.targets = {name: [] for name in file.nodes}
    file.sources = {name: [] for name in file.nodes}
    for where, (source, target) in edges:
        for name in (source, target):
            if name not in file.nodes:
                raise InputError(where, name, "edges between nodes that have a line of their own")
        if target not in file.targets[source]:
            file.targets[source].append(target)
            file.sources[target].append(source)
    return file


def _rank(name: str) -> tuple[int, str]:
    """Nodes are numbered in the order in which the model ran; the lines are shuffled."""
    digits = re.search(r"[0-9]{1,18}$", name)
    return (int(digits[0]) if digits else 0, name)


def _edge(line: str, where: str) -> tuple[str, str]:
    parts = [part.strip() for part in line.split(" -- ")]
    if len(parts) != 2 or not all(parts):
        raise InputError(where, line.strip(), 'an edge, "node1 -- node2"')
    return parts[0], parts[1]


def _node(line: str, where: str) -> _Node:
    parts = [part.strip() for part in line.split(" -- ")]
    sound = len(parts) in (3, 4) and parts[0] and " " not in parts[0]
    if not sound:
        raise InputError(where, line, "a node (id -- description -- costs) or an indented edge")
    if len(parts) == 4 and not _STAGE.fullmatch(parts[3]):
        raise InputError(where, parts[3], "stage_id=<number> behind the costs")
    costs: dict[str, float] = {}
    for pair in parts[2].split(", "):
        name, _, value = pair.partition("=")
        name = name.strip()
        if name not in _COSTS or name in costs:
            raise InputError(where, pair, f"each of {', '.join(_COSTS)} once")
        costs[name] = _amount(value.strip(), f"{where}: {name}")
    for name in _COSTS:
        if name not in costs:
            raise InputError(f"{where}: {name}", words("nothing"), "this field is required")
    forward, backward, activation, parameters = (costs[name] for name in _COSTS)
    return _Node(
        id=parts[0],
        description=parts[1],
        forward_ms=forward,
        backward_ms=backward,
        activation_bytes=activation,
        parameter_bytes=parameters,
    )


def _amount(text: str, where: str) -> float:
    """A number, or the sum of a list `[6291456.0; 131072.0]` of activations."""
    listed = where.endswith("activation_size") and text.startswith("[") and text.endswith("]")
    parts = text[1:-1].split(";") if listed else [text]
    total = 0.0
    for part in parts:
        number = float(part) if _NUMBER.fullmatch(part.strip()) else math.nan
        if not 0 <= number <= LARGEST_AMOUNT:
            raise InputError(where, text, f"a number from 0 to {LARGEST_AMOUNT:g}")
        total += number
    return total


def _inputs(file: _File) -> set[str]:
    """Nodes that stand for the model's inputs, and the selectors that read nothing else."""
    found: set[str] = set()
    for name, node in file.nodes.items():
        if node.description.startswith("Input") and not file.sources[name]:
            found.add(name)
    waiting = [target for name in found for target in file.targets[name]]
    while waiting:
        name = waiting.pop()
        selects = file.nodes[name].description.startswith(_SELECTOR)
        if selects and name not in found and found.issuperset(file.sources[name]):
            found.add(name)
            waiting.extend(file.targets[name])
    return found


def _owners(file: _File) -> dict[str, str]:
    """For each node the one that it joins: itself, or the layer that a selector selects from.

    A selector that reads several layers, or none, stays a layer.
    """
    step = {
        name: file.sources[name][0]
        if node.description.startswith(_SELECTOR) and len(file.sources[name]) == 1
        else name
        for name, node in file.nodes.items()
    }
    owners = {}
    for name in step:
        owner, seen = name, set[str]()
        while step[owner] != owner:
            if owner in seen:
                raise InputError("graph", words(f"a cycle through {owner}"), "edges without cycles")
            seen.add(owner)
            owner = step[owner]
        owners[name] = owner
    return owners


def _costs(file: _File, owners: dict[str, str]) -> dict[str, Costs]:
    """The figures of each layer, with those of its selectors; these keep no memory of theirs."""
    members: dict[str, list[_Node]] = {}
    for name, owner in owners.items():
        members.setdefault(owner, []).append(file.nodes[name])
    return {
        owner: Costs(
            name=file.nodes[owner].label,
            forward=sum(node.forward_ms for node in nodes),
            backward=sum(node.backward_ms for node in nodes),
            parameter_bytes=sum(node.parameter_bytes for node in nodes),
            stash_bytes=file.nodes[owner].activation_bytes,
        )
        for owner, nodes in members.items()
        if owner == owners[owner]
    }


def _tensors(
    file: _File, owners: dict[str, str], names: dict[str, str], samples: int
) -> tuple[Tensor, ...]:
    """One tensor for each element that is selected from a node's output, one for the rest of it.

    Who reads the whole output reads every element, so the parts are disjoint and a cut that the
    whole crosses carries each byte once.
    """
    tensors = []
    for name, node in file.nodes.items():
        if owners[name] != name:
            continue
        direct = [target for target in file.targets[name] if owners[target] == target]
        parts: dict[str, tuple[float, list[str]]] = {}
        for selector in (target for target in file.targets[name] if owners[target] != target):
            description = file.nodes[selector].description
            key = description if description != _SELECTOR else selector
            size, readers = parts.get(key, (0.0, []))
            size = max(size, file.nodes[selector].activation_bytes)
            parts[key] = (size, readers + _readers(file, owners, selector))
        # A selector without a size of its own may select anything: its readers count as readers
        # of the whole.
        direct += [reader for size, readers in parts.values() if not size for reader in readers]
        rest = node.activation_bytes - sum(size for size, _ in parts.values())
        parts[""] = (max(0.0, rest), [])
        for size, readers in parts.values():
            consumers = dict.fromkeys([*readers, *direct])
            tensor = Tensor(
                producer=names[name],
                consumers=tuple(names[reader] for reader in consumers),
                bytes_per_sample=size / samples,
            )
            tensors.append(tensor)
    return tuple(tensors)


def _readers(file: _File, owners: dict[str, str], selector: str) -> list[str]:
    """The layers that read what a selector selects, through further selectors."""
    found: list[str] = []
    waiting = [selector]
    while waiting:
        for target in file.targets[waiting.pop()]:
            (found if owners[target] == target else waiting).append(target)
    return found
