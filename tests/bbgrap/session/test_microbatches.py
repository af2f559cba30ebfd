"""Batches in micro-batches: nothing is lost, nothing comes twice, and little is computed in vain."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.session.microbatches import LEAST_S, WASTE, Answers, microbatch_size, microbatches_of


@given(st.integers(1, 500), st.floats(1e-5, 1.0), st.integers(0, 9))
def test_a_microbatch_is_worth_a_request_and_every_agent_gets_some(images, image_s, agents):
    size = microbatch_size(images, image_s, agents)
    if size is None:
        assert agents == 0 or images * image_s <= 2 * agents * (LEAST_S + image_s)
        return
    count = -(-images // size)
    assert 1 <= size < images
    assert count >= agents
    assert count * size <= (1 + WASTE) * images


def test_equal_agents_get_equally_many_microbatches_where_possible():
    assert [microbatch_size(images, 0.08, 2) for images in (10, 50, 100)] == [1, 5, 10]
    assert [microbatch_size(images, 0.08, 3) for images in (30, 100)] == [2, 6]


def test_small_batches_and_short_images_stay_whole():
    assert microbatch_size(3, 1.0, 2) is None
    assert microbatch_size(100, 1e-5, 2) is None
    assert microbatch_size(100, 1.0, 0) is None


@given(st.integers(2, 40), st.integers(1, 12), st.randoms())
def test_answers_of_microbatches_are_those_of_the_batch(images, size, chance):
    size = min(size, images)
    feeds = [np.arange(images * 3.0).reshape(images, 3), np.arange(images)]
    microbatches = list(enumerate(microbatches_of(feeds, size)))
    assert all([len(array) for array in microbatch] == [size, size] for _, microbatch in microbatches)
    answers = Answers(images, size)
    chance.shuffle(microbatches)
    for number, (first, second) in microbatches:
        answers.put(number, [first * 2, second])
    doubled, same = answers.whole()
    np.testing.assert_array_equal(doubled, feeds[0] * 2)
    np.testing.assert_array_equal(same, feeds[1])
