"""Requests of a sequence become one: what is joined is what they bring, in order, and nothing that does not go on is joined."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.control.joined_requests import MAX_WORDS, joined
from bbgrap.control.sequence import RequestInputs
from bbgrap.graph.types import DType
from bbgrap.protocol.messages import TensorHeader
from bbgrap.protocol.tensors import decode_array
from bbgrap.runtime.joined_requests import JoinedInput

JOININGS = {"ids": JoinedInput("row", 1), "mask": JoinedInput("whole", 1), "flag": JoinedInput("same")}


def request(**arrays):
    headers = tuple(TensorHeader(name, DType.INT64, array.shape) for name, array in arrays.items())
    return RequestInputs(headers, tuple(np.ascontiguousarray(array).tobytes() for array in arrays.values()))


def arrays_of(made):
    return {h.name: decode_array(h.dtype, h.shape, content) for h, content in zip(made.inputs, made.payload, strict=True)}


def sequence_of(words, mask, counts, flags=None):
    """The first one brings state, too."""
    ends = np.cumsum(counts)
    requests = []
    for number, (end, count) in enumerate(zip(ends, counts, strict=True)):
        flag = np.array([1 if flags is None else flags[number]])
        first = {"past": np.zeros((1, 0))} if not number else {}
        requests.append(request(ids=words[:, end - count : end], mask=mask[:, :end], flag=flag, **first))
    return requests


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.data())
def test_all_of_them_become_what_they_bring_together(counts, data):
    total = sum(counts)
    words, mask = np.array([data.draw(st.lists(st.integers(0, 1), min_size=total, max_size=total))]), np.ones((1, total), np.int64)
    made, count = joined(sequence_of(words, mask, counts), JOININGS)
    assert count == len(counts)
    got = arrays_of(made)
    assert list(got) == ["ids", "mask", "flag", "past"]
    np.testing.assert_array_equal(got["ids"], words)
    np.testing.assert_array_equal(got["mask"], mask)
    assert (got["flag"].tolist(), got["past"].shape) == ([1], (1, 0))


def test_what_does_not_go_on_is_not_joined():
    words, mask = np.arange(6)[None], np.ones((1, 6), np.int64)
    requests = sequence_of(words, mask, [2, 2, 2], flags=[1, 1, 0])
    assert joined(requests, JOININGS)[1] == 2
    assert joined(requests[2:], JOININGS)[1] == 1
    assert joined(requests, {})[0] is requests[0]
    masked = sequence_of(words, mask, [2, 2, 2])
    changed = request(ids=words[:, 2:4], mask=np.array([[1, 0, 1, 1]]), flag=np.array([1]))
    assert joined([masked[0], changed, masked[2]], JOININGS)[1] == 1
    longer = request(ids=words[:, 2:4], mask=mask[:, :5], flag=np.array([1]))
    assert joined([masked[0], longer], JOININGS)[1] == 1
    other = request(ids=np.ones((2, 2), np.int64), mask=mask[:, :4], flag=np.array([1]))
    assert joined([masked[0], other], JOININGS)[1] == 1
    unknown = request(nix=words[:, 2:4])
    assert joined([masked[0], unknown], JOININGS)[1] == 1
    assert joined([unknown, masked[0]], JOININGS)[1] == 1


def test_where_something_is_masked_nothing_is_joined():
    """A model that counts a mask's ones puts the next word behind them, one that gets all words at once behind the padding."""
    words, mask = np.arange(12).reshape(2, 6), np.ones((2, 6), np.int64)
    assert joined(sequence_of(words, mask, [4, 1, 1]), JOININGS)[1] == 3
    mask[1, 2:4] = 0
    requests = sequence_of(words, mask, [4, 1, 1])
    assert joined(requests, JOININGS) == (requests[0], 1)


def test_one_request_has_no_more_words_than_it_may():
    words = np.arange(2 * MAX_WORDS)[None]
    requests = sequence_of(words, np.ones_like(words), [1] * words.size)
    made, count = joined(requests, JOININGS)
    assert (count, arrays_of(made)["ids"].shape) == (MAX_WORDS, (1, MAX_WORDS))
    long = sequence_of(words, np.ones_like(words), [2 * MAX_WORDS])
    assert joined(long, JOININGS)[0] is long[0]
