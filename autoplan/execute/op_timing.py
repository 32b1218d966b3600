"""Measures the operators of a Paddle program one by one, each in a little program of its own."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoplan.costmodel.graph import Op, OpGraph
from autoplan.costmodel.measurements import Measurement, Measurements
from autoplan.costmodel.op_names import FREE
from autoplan.costmodel.paddle_program import read_program
from autoplan.costmodel.reuse import reuse_bytes
from autoplan.costmodel.shapes import resolved
from autoplan.costmodel.signature import signature
from autoplan.errors import InputError, require, words
from autoplan.execute.model_source import complaint, require_paddle
from autoplan.execute.paddle_device import current_device
from autoplan.execute.program_source import static_mode

_CONSTANTS = frozenset({"pd_op.full", "pd_op.full_int_array"})
"""Operands that kernels read on the host: they are copied, not fed."""
_AIM_S = 2e-3
"""Seconds that the copies of one operator should take in all, to be far above the clock's tick."""
_MOST_COPIES = 100
_SHORTEST_S = 1e-9
_LEAST_REPEATS = 5
"""Fewer give no usable quartiles."""
_MOST_OPERAND_BYTES = 256 * 2**20
"""Bytes of all copies of an operator's operands, of one operator at a time."""

Progress = Callable[[str], None]


def measure_program(
    program: Any,
    startup: Any,
    feed: Mapping[str, Any],
    *,
    known: Measurements | None = None,
    repeats: int = 9,
    seed: int = 0,
    progress: Progress | None = None,
    each_round: Callable[[], None] | None = None,
) -> Measurements:
    """Measures every operator of a PIR program whose signature is not known yet.

    Each operator is copied into a program of its own, once in a first and n times in a second; the
    difference of their times over n - 1 is the operator's, dispatch included. Operands are random,
    but for integers (labels, indices, masks), which are those of a real step. The copies take turns
    over several sets of operands, so many that an operand is as cold in the caches as it is in the
    program (`costmodel.reuse`): a weight is, an activation made just before is not. Rounds go over
    all operators, so that a disturbance of the machine does not fall on one of them; the median
    counts. The clock is the process's CPU time on a CPU, as other processes take wall time away,
    and the wall's on a GPU.

    Args:
        program: the training program.
        startup: its startup program.
        feed: one batch, by name.
        known: measurements so far; those of another device are refused.
        repeats: rounds, at least 5.
        seed: of the random operands.
        progress: is told in one line what was done.
        each_round: is called at the start of each round, for what is to be compared with it.

    Raises:
        InputError: paddle is missing, or the program cannot be run or has an operator that cannot
            be measured on its own.
    """
    require(repeats >= _LEAST_REPEATS, "repeats", repeats, f"at least {_LEAST_REPEATS}")
    with static_mode():
        return _measured(
            _Bench(program, startup, feed, np.random.default_rng(seed)),
            known,
            repeats,
            progress or (lambda line: None),
            each_round or (lambda: None),
        )


def _measured(
    bench: _Bench,
    known: Measurements | None,
    repeats: int,
    tell: Progress,
    each_round: Callable[[], None],
) -> Measurements:
    """The measurements of a program's operators, added to those known."""
    found = bench.described()
    if known is not None:
        known.require_same_device(found)
        found = known
    wanted = {key: op for key, op in bench.operators().items() if key not in found.ops}
    tell(f"{len(wanted)} operators to measure, {len(found.ops)} known")
    trials = bench.trials(wanted)
    empty = bench.trial_of_nothing()
    readings: dict[str, list[float]] = {key: [] for key in trials}
    overhead_s: list[float] = []
    gc.collect()
    gc.disable()
    try:
        for round_number in range(repeats):
            each_round()
            overhead_s.append(empty.once_s())
            for key, trial in trials.items():
                readings[key].append(trial.seconds())
            tell(f"round {round_number + 1} of {repeats}")
    finally:
        gc.enable()
    measured = {key: _summary(values) for key, values in readings.items()}
    return found.including(measured, float(np.median(overhead_s)))


def _summary(values: list[float]) -> Measurement:
    q1, median, q3 = np.quantile(values, [0.25, 0.5, 0.75])
    return Measurement(
        seconds=max(float(median), _SHORTEST_S),
        spread_s=float(q3 - q1) / 2,
        samples=len(values),
    )


@dataclass(kw_only=True)
class _Trial:
    """Two programs that differ in how often they run an operator."""

    few: Callable[[], float]
    """Runs the operator once; returns seconds."""
    many: Callable[[], float]
    """Runs it `copies` times."""
    copies: int

    def seconds(self) -> float:
        """Seconds of one call, by the difference."""
        return (self.many() - self.few()) / (self.copies - 1)

    def once_s(self) -> float:
        """Seconds of the program that runs it once."""
        return self.few()


class _Operands:
    """Stand-ins for an operator's operands, kept in a scope, several of those that are cold."""

    def __init__(
        self, paddle: Any, place: Any, real: Mapping[str, Any], rng: np.random.Generator
    ) -> None:
        self.scope = paddle.static.Scope()
        self.shapes: Mapping[str, tuple[int, ...]] = {}
        self.turns: Mapping[str, int] = {}
        self._paddle = paddle
        self._place = place
        self._real = real
        self._rng = rng
        self._made: dict[tuple[str, int], Any] = {}

    def stand_in(self, value: Any, turn: int) -> Any:
        """What takes the place of `value` in the copy number `turn`."""
        maker = None if _is_argument(value) else value.get_defining_op()
        if maker is not None and maker.name() == "builtin.combine":
            parts = [self.stand_in(part, turn) for part in maker.operands_source()]
            return self._paddle._pir_ops.builtin_combine(parts)
        key = (value.id, turn % self.turns.get(value.id, 1))
        if key not in self._made:
            constant = maker is not None and maker.name() in _CONSTANTS
            self._made[key] = self._copied(maker) if constant else self._kept(value)
        return self._made[key]

    def _copied(self, maker: Any) -> Any:
        pir = self._paddle.base.libpaddle.pir
        return maker.clone(pir.IrMapping(), pir.CloneOptions(False, True, False)).results()[0]

    def _kept(self, value: Any) -> Any:
        """A variable of the scope that holds content for a value, read by name."""
        content = self._real.get(value.id)
        if content is None:
            dtype = str(value.dtype).rpartition(".")[2]
            content = self._content(self.shapes[value.id], dtype, bool(value.persistable))
        name = f"operand_{len(self._made)}"
        stand_in = self._paddle.static.data(name, list(content.shape), str(content.dtype))
        stand_in.persistable = True
        self.scope.var(name).get_tensor().set(content, self._place)
        return stand_in

    def _content(self, shape: tuple[int, ...], dtype: str, persistable: bool) -> Any:
        """Random numbers: any sign, but positive where a kernel may take roots (statistics)."""
        if dtype in {"bool", "uint8", "int8", "int32", "int64"}:
            return self._rng.integers(0, 2, shape).astype(dtype)
        known = dtype in {"float16", "float32", "float64"}
        require(known, "dtype", dtype, "float16, float32, float64 or integers")
        return self._rng.uniform(0.1 if persistable else -1.0, 1.0, shape).astype(dtype)


class _Bench:
    """A program's operators, ready to be run alone."""

    def __init__(
        self, program: Any, startup: Any, feed: Mapping[str, Any], rng: np.random.Generator
    ) -> None:
        self._paddle = require_paddle()
        self._pir = self._paddle.base.libpaddle.pir
        if not isinstance(program, self._pir.Program):
            found = words(f"a value of type {type(program).__name__}")
            raise InputError("program", found, "a program of the new IR (PIR)")
        self._program = program
        self._device = current_device()
        cpu = self._device.threads is not None
        self._place = self._paddle.CPUPlace() if cpu else self._paddle.CUDAPlace(0)
        self._rng = rng
        batch = next((int(np.shape(value)[0]) for value in feed.values()), 1)
        self.graph: OpGraph = resolved(read_program(program, default_trips=1), batch)
        self._ops_by_id = {int(op.id()): op for op in _walk(program.global_block())}
        self._distances = reuse_bytes(self.graph)
        self._real = self._run_once(startup, feed)

    def described(self) -> Measurements:
        """An empty database of this device."""
        version = f"paddlepaddle {self._paddle.__version__}"
        device = self._device
        return Measurements(device=device.description, framework=version, threads=device.threads)

    def operators(self) -> dict[str, Op]:
        """One operator for each signature."""
        return {
            signature(op, self.graph.tensors): op
            for op in self.graph.walk()
            if op.type not in FREE and not op.blocks and op.collective is None
        }

    def trials(self, wanted: Mapping[str, Op]) -> dict[str, _Trial]:
        """Programs for the operators, warmed up."""
        made = {}
        for key, op in wanted.items():
            try:
                made[key] = self._trial(op, self._distances[key])
            except InputError:
                raise
            except Exception as error:
                found = words(f"{op.type}: {complaint(error)}")
                raise InputError("operator", found, "one that runs alone") from None
        return made

    def trial_of_nothing(self) -> _Trial:
        """A program that only makes a constant."""
        program = self._paddle.static.Program()
        with self._guard(program):
            self._paddle.full([1], 0.0)
        return _Trial(few=self._runner(program), many=self._runner(program), copies=2)

    def _trial(self, op: Op, distances: Sequence[int]) -> _Trial:
        few = self._copies(op, 1, distances)
        few()
        once_s = min(few() for _ in range(3))
        copies = 1 + min(_MOST_COPIES, max(3, int(_AIM_S / max(once_s, 1e-6))))
        many = self._copies(op, copies, distances)
        many()
        return _Trial(few=few, many=many, copies=copies)

    def _copies(self, op: Op, count: int, distances: Sequence[int]) -> Callable[[], float]:
        """A program with `count` copies of an operator, its operands as cold as `distances`."""
        assert op.id is not None
        source = self._ops_by_id[op.id]
        program = self._paddle.static.Program()
        operands = _Operands(self._paddle, self._place, self._real, self._rng)
        leaves = [value.id for value in _leaves(source.operands_source())]
        tensors = [self.graph.tensors[index] for index in op.inputs]
        touched = sum(tensor.size_bytes for tensor in tensors) or 1
        most = max(1, _MOST_OPERAND_BYTES // touched)
        operands.shapes = {v: t.shape for v, t in zip(leaves, tensors, strict=False)}
        operands.turns = {
            v: min(count, most, 1 + distance // touched)
            for v, distance in zip(leaves, distances, strict=False)
        }
        with self._guard(program):
            for turn in range(count):
                mapping = self._pir.IrMapping()
                for value in source.operands_source():
                    if value.initialized() and not mapping.has(value):
                        mapping.add(value, operands.stand_in(value, turn))
                source.clone(mapping, self._pir.CloneOptions(False, True, False))
        return self._runner(program, operands.scope)

    def _guard(self, program: Any) -> Any:
        return self._paddle.static.program_guard(program, self._paddle.static.Program())

    def _runner(self, program: Any, scope: Any = None) -> Callable[[], float]:
        """A function that runs the program once and returns seconds."""
        executor = self._paddle.static.Executor(self._place)
        device = self._device
        scope = self._paddle.static.Scope() if scope is None else scope
        clock = time.perf_counter if device.threads is None else time.process_time

        def run() -> float:
            start_s = clock()
            executor.run(program, scope=scope)
            device.synchronize()
            return clock() - start_s

        return run

    def _run_once(self, startup: Any, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Operands whose content or size decides the time, from one real step, by value."""
        wanted = {}
        for op in _walk(self._program.global_block()):
            for value in _leaves(op.operands_source()):
                if not _is_argument(value) and _needs_real_content(value):
                    wanted[value.id] = value
        scope = self._paddle.static.Scope()
        executor = self._paddle.static.Executor(self._place)
        inner = {v.id for op in _walk_blocks(self._program.global_block()) for v in op.results()}
        values = [value for key, value in wanted.items() if key not in inner]
        try:
            with self._paddle.static.scope_guard(scope):
                executor.run(startup, scope=scope)
                got = executor.run(self._program, feed=dict(feed), fetch_list=values, scope=scope)
        except Exception as error:
            found = words(complaint(error))
            raise InputError("program", found, "a program that runs with this feed") from None
        return {value.id: np.asarray(array) for value, array in zip(values, got, strict=True)}


def _walk(block: Any) -> Iterator[Any]:
    """All operators of a block and of the blocks inside it."""
    for op in block.ops:
        yield op
        if op.num_regions():
            for inner in op.blocks():
                yield from _walk(inner)


def _walk_blocks(block: Any) -> Iterator[Any]:
    """The operators inside control flow."""
    for op in block.ops:
        if op.num_regions():
            for inner in op.blocks():
                yield from _walk(inner)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """Values with packed ones taken apart, as operator graphs list them."""
    for value in values:
        if not value.initialized():
            continue
        maker = None if _is_argument(value) else value.get_defining_op()
        if maker is not None and maker.name() == "builtin.combine":
            yield from _leaves(maker.operands_source())
        else:
            yield value


def _is_argument(value: Any) -> bool:
    """Whether a value enters a block rather than being made by an operator."""
    return value.get_defining_op() is None


def _needs_real_content(value: Any) -> bool:
    """Integers choose what is read; a result declared empty has a size that only a run tells."""
    kind = value.type()
    if hasattr(kind, "as_vec_type") and kind.as_vec_type() is not None:
        return False
    return 0 in value.shape or any(part in str(value.dtype) for part in ("int", "bool"))
