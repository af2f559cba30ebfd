"""What follows from a description: regions, strategies, granularity, work (check T1)."""

from dataclasses import dataclass

import numpy as np
import pytest

from bbgrap.planners.shares import split_by_shares
from bbgrap.shapemap import Interval, IntervalSet, ShapeMap
from bbgrap.tdl import Description, flops, granularity, input_regions
from bbgrap.tdl.language import ALL, Index, Max, Opaque, Quotient, Reduce, ScalarCall, Sum, indices, operand
from tests.bbgrap.tdl.verifier import Case, Whole

DATA, FILTERS = operand(0), operand(1)


def conv1d():
    b, co, x, ci, dx = indices(b=8, co=16, x=30, ci=4, dx=3)
    return Description((b, co, x), Sum((ci, dx), DATA[b, ci, x + dx] * FILTERS[ci, co, dx]))


@dataclass(frozen=True)
class Strategy:
    """One way to split a node over two workers (Tofu 4.1): along an output index, or an index that is summed over."""

    index: str
    kind: str
    regions: list[tuple[ShapeMap | None, ...]]
    """Per worker, per operand: what it reads."""


def strategies(description, operand_shapes):
    """List every strategy: splittable output indices first, then indices of an outermost reduction."""
    found = []
    whole = ShapeMap.full(description.shape)
    for axis in description.splittable_axes:
        pieces = split_by_shares(description.shape[axis], [1.0, 1.0])
        tiles = [whole.replace(axis, IntervalSet.of(piece)) for piece in pieces]
        regions = [input_regions(description, tile, operand_shapes) for tile in tiles]
        found.append(Strategy(description.outputs[axis].name, "concatenate", regions))
    if isinstance(description.body, Reduce):
        for index in description.body.over:
            pieces = split_by_shares(index.extent, [1.0, 1.0])
            regions = [input_regions(description, whole, operand_shapes, {index.name: piece}) for piece in pieces]
            found.append(Strategy(index.name, description.body.kind, regions))
    return found


def test_t1_conv1d_has_five_strategies():
    found = strategies(conv1d(), [(8, 4, 32), (4, 16, 3)])
    assert [(s.index, s.kind) for s in found] == [
        ("b", "concatenate"),
        ("co", "concatenate"),
        ("x", "concatenate"),
        ("ci", "sum"),
        ("dx", "sum"),
    ]
    regions = {s.index: [[str(read) for read in worker] for worker in s.regions] for s in found}
    assert regions == {
        "b": [["[0:4, 0:4, 0:32]", "[0:4, 0:16, 0:3]"], ["[4:8, 0:4, 0:32]", "[0:4, 0:16, 0:3]"]],
        "co": [["[0:8, 0:4, 0:32]", "[0:4, 0:8, 0:3]"], ["[0:8, 0:4, 0:32]", "[0:4, 8:16, 0:3]"]],
        "x": [["[0:8, 0:4, 0:17]", "[0:4, 0:16, 0:3]"], ["[0:8, 0:4, 15:32]", "[0:4, 0:16, 0:3]"]],
        "ci": [["[0:8, 0:2, 0:32]", "[0:2, 0:16, 0:3]"], ["[0:8, 2:4, 0:32]", "[2:4, 0:16, 0:3]"]],
        "dx": [["[0:8, 0:4, 0:31]", "[0:4, 0:16, 0:2]"], ["[0:8, 0:4, 2:32]", "[0:4, 0:16, 2:3]"]],
    }


def test_t1_matmul_has_three_strategies():
    i, j, k = indices(i=4, j=6, k=8)
    found = strategies(Description((i, j), Sum((k,), DATA[i, k] * FILTERS[k, j])), [(4, 8), (8, 6)])
    assert [(s.index, s.kind) for s in found] == [("i", "concatenate"), ("j", "concatenate"), ("k", "sum")]
    assert [str(read) for read in found[2].regions[1]] == ["[0:4, 4:8]", "[4:8, 0:6]"]


def test_t1_batch_cholesky_has_one_strategy():
    b, i, j = indices(b=4, i=3, j=3)
    description = Description((b, i, j), Opaque("cholesky", (DATA[b, ALL, ALL],), (i, j)))
    (only,) = strategies(description, [(4, 3, 3)])
    assert (only.index, only.kind) == ("b", "concatenate")
    assert [str(worker[0]) for worker in only.regions] == ["[0:2, 0:3, 0:3]", "[2:4, 0:3, 0:3]"]
    assert description.splittable_axes == (0,)


def test_t1_shift_two_reads_the_regions_of_the_paper():
    (i,) = indices(i=10)
    (only,) = strategies(Description((i,), DATA[(i + 2,)]), [(12,)])
    assert [str(worker[0]) for worker in only.regions] == ["[2:7]", "[7:12]"]


def test_reads_of_several_ranges_stay_apart():
    (read, filters) = input_regions(
        conv1d(), ShapeMap.of((0, 8), IntervalSet.of((0, 2), (9, 10)), IntervalSet.of((0, 3), (20, 22))), [(8, 4, 32), (4, 16, 3)]
    )
    assert str(read) == "[0:8, 0:4, 0:5,20:24]"
    assert str(filters) == "[0:4, 0:2,9:10, 0:3]"


def test_an_empty_tile_reads_nothing():
    reads = input_regions(conv1d(), ShapeMap.of((0, 8), (0, 16), (5, 5)), [(8, 4, 32), (4, 16, 3)])
    assert all(read.is_empty for read in reads)


def test_operands_that_are_not_read_have_no_region():
    (i,) = indices(i=4)
    assert input_regions(Description((i,), DATA[(i,)]), ShapeMap.full((4,)), [(4,), (9,)])[1] is None
    assert input_regions(Description((i,), ScalarCall("f", (DATA[(i,)], FILTERS[(i,)]))), ShapeMap.full((4,)), [(4,), None])[1] is None


@pytest.mark.parametrize(
    ("subscript", "step"),
    [
        (Index("i", 12), 1),
        (Index("i", 12) // 4, 4),
        ((Index("i", 12) * 2 + Index("r", 2)) // 6, 3),
        ((Index("i", 12) * 2 - 1) // 4 + Index("t", 2), 2),
        ((Index("i", 12) // 3) * 5, 3),
        (Quotient(Index("i", 12) + 1, 4, exact=True), 1),
        (Index("j", 12) // 4, 1),
        (ALL, 1),
    ],
)
def test_granularity_is_the_step_of_free_cuts(subscript, step):
    (i,) = indices(i=12)
    assert granularity(Description((i,), DATA[(subscript,)]), 0) == step


@pytest.mark.parametrize(("before", "after", "steps"), [((6, 4), (24,), [4]), ((2, 3, 4), (6, 4), [3, 1]), ((4, 6), (8, 3), [2, 1])])
def test_cuts_at_the_granularity_of_a_reshape_read_no_unit_twice(before, after, steps):
    x = np.zeros(before, np.float32)
    description = Whole(Case("Reshape", (x, np.array(after, np.int64)), parameters=frozenset((1,)))).describe()
    assert [granularity(description, axis) for axis in range(len(after))] == steps
    for cut in range(steps[0], after[0], steps[0]):
        tiles = [ShapeMap.full(after).replace(0, IntervalSet.of(piece)) for piece in ((0, cut), (cut, after[0]))]
        first, second = (input_regions(description, tile, [before, None])[0] for tile in tiles)
        assert first.size + second.size == x.size


def test_flops_count_calls_and_steps_of_reductions():
    i, j, k = indices(i=4, j=6, k=8)
    matmul = Description((i, j), Sum((k,), DATA[i, k] * FILTERS[k, j]))
    assert flops(matmul, ShapeMap.full((4, 6))) == 2 * 4 * 6 * 8
    assert flops(matmul, ShapeMap.of((0, 1), (0, 6)), {"k": Interval(0, 4)}) == 2 * 6 * 4
    assert flops(Description((i,), Max((k,), DATA[i, k])), ShapeMap.full((4,))) == 32
    assert flops(Description((i, j), DATA[j, i]), ShapeMap.full((4, 6))) == 0
    assert flops(Description((i, j), ScalarCall("add", (DATA[i, j], Sum((k,), FILTERS[(k,)])))), ShapeMap.full((4, 6))) == 24 * 9
    assert flops(Description((i, j), Opaque("softmax", (DATA[i, ALL],), (j,))), ShapeMap.full((4, 6))) == 24 * 8
