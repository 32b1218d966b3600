"""The smallest graph that takes as long: chains merged by sum, branches by maximum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.costmodel.dag import Dag, simulated_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Work between two moments at which no stream is busy."""

    dag: Dag
    """Merged chains; one piece where a single stream works."""
    pieces: int
    """Pieces of the unmerged graph in it."""

    @property
    def seconds(self) -> float:
        """One chain: its sum. Branches that wait for nothing inside: the longest. Else a run."""
        dag = self.dag
        if len(set(dag.streams)) == len(dag.streams) and not any(dag.waits_for):
            return max(dag.seconds)
        return simulated_s(dag)


def merged(dag: Dag) -> tuple[Segment, ...]:
    """Chains of a stream become one piece, and moments that all streams wait for split the graph.

    A piece joins the one before it on its stream if no other stream waits for that one and the
    piece itself waits for nothing that was not over when that one started: then it starts exactly
    when that one ends. Branches count as concurrent only on different streams. The sum over
    segments equals `simulated_s` of the whole.
    """
    return _segments(*_chains(dag))


def merged_s(dag: Dag) -> float:
    """Seconds of the merged graph."""
    return sum(segment.seconds for segment in merged(dag))


Clock = list[int]
"""For each stream the number of its chains that are over when a chain starts."""


def _chains(dag: Dag) -> tuple[Dag, list[Clock], list[int]]:
    """Merged chains, what is over when each starts, and how many pieces each holds."""
    num_streams = max(dag.streams, default=0) + 1
    seconds: list[float] = []
    streams: list[int] = []
    waits: list[tuple[int, ...]] = []
    clocks: list[Clock] = []
    pieces: list[int] = []
    place: list[int] = []
    """Of each chain, its position on its stream."""
    awaited = _awaited(dag)
    open_ended: list[bool] = []
    last = [-1] * num_streams
    length = [0] * num_streams
    chain_of: list[int] = []
    for piece, stream in enumerate(dag.streams):
        elsewhere = (other for other in dag.waits_for[piece] if dag.streams[other] != stream)
        needed = {chain_of[other] for other in elsewhere}
        before = last[stream]
        known = before >= 0 and all(place[n] < clocks[before][streams[n]] for n in needed)
        if known and open_ended[before]:
            seconds[before] += dag.seconds[piece]
            pieces[before] += 1
            open_ended[before] = piece not in awaited
            chain_of.append(before)
            continue
        clock = list(clocks[before]) if before >= 0 else [0] * num_streams
        clock[stream] = length[stream]
        for n in needed:
            clock = [max(pair) for pair in zip(clock, clocks[n], strict=True)]
            clock[streams[n]] = max(clock[streams[n]], place[n] + 1)
        chain_of.append(len(seconds))
        last[stream] = len(seconds)
        seconds.append(dag.seconds[piece])
        streams.append(stream)
        waits.append(tuple(sorted(needed)))
        clocks.append(clock)
        pieces.append(1)
        place.append(length[stream])
        open_ended.append(piece not in awaited)
        length[stream] += 1
    chains = Dag(seconds=tuple(seconds), streams=tuple(streams), waits_for=tuple(waits))
    return chains, clocks, pieces


def _awaited(dag: Dag) -> set[int]:
    """Pieces that something on another stream waits for: a chain ends with such a one."""
    return {
        other
        for piece, needed in enumerate(dag.waits_for)
        for other in needed
        if dag.streams[other] != dag.streams[piece]
    }


def _segments(chains: Dag, clocks: Sequence[Clock], pieces: Sequence[int]) -> tuple[Segment, ...]:
    """Splits where every chain that follows waits for all that went before."""
    cuts = _cuts(chains, clocks)
    found = []
    for first, end in zip([0, *cuts], [*cuts, len(chains.seconds)], strict=True):
        if first == end:
            continue
        waits = tuple(
            tuple(n - first for n in chains.waits_for[i] if n >= first) for i in range(first, end)
        )
        part = Dag(
            seconds=chains.seconds[first:end], streams=chains.streams[first:end], waits_for=waits
        )
        found.append(Segment(dag=part, pieces=sum(pieces[first:end])))
    return tuple(found)


def _cuts(chains: Dag, clocks: Sequence[Clock]) -> list[int]:
    """Positions before which everything is over when anything behind them starts."""
    num_streams = max(chains.streams, default=0) + 1
    count = [0] * num_streams
    before: list[tuple[int, ...]] = []
    for stream in chains.streams:
        before.append(tuple(count))
        count[stream] += 1
    # The first chain of each stream behind a cut starts first there, so that it alone must wait.
    cuts = []
    first_behind: dict[int, int] = {}
    for position in range(len(chains.seconds) - 1, 0, -1):
        first_behind[chains.streams[position]] = position
        least = [min(clocks[i][s] for i in first_behind.values()) for s in range(num_streams)]
        over = before[position]
        if all(least[s] >= over[s] for s in range(num_streams)):
            cuts.append(position)
    return cuts[::-1]
