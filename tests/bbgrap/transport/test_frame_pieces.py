from random import Random

from hypothesis import given
from hypothesis import strategies as st

from bbgrap.protocol.limits import MAX_PAYLOAD_FRAMES
from bbgrap.transport import frame_pieces
from bbgrap.transport.frame_pieces import PIECE_BYTES, cut, join

SIZES = st.one_of(
    st.integers(0, 40), st.sampled_from([PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 7])
)


@given(st.lists(SIZES, min_size=1, max_size=4), st.integers(0, 99))
def test_what_is_cut_is_joined_again_and_every_piece_is_small(sizes, seed):
    frames = [Random(seed + place).randbytes(size) for place, size in enumerate(sizes)]
    envelope, *wire = cut(b"who", frames)
    assert envelope[:3] == b"who"
    assert max(map(len, wire)) <= PIECE_BYTES < frame_pieces.MOST_BYTES
    assert [bytes(frame) for frame in join(envelope[3:], wire)] == frames


@given(st.binary(max_size=12), st.lists(st.binary(max_size=3), max_size=6))
def test_any_envelope_makes_at_most_what_there_is(envelope, wire):
    joined = join(envelope, wire)
    assert joined == [] or b"".join(bytes(frame) for frame in joined) == b"".join(wire)


def test_too_many_frames_are_none():
    assert join(b"", [b""] * (2 + MAX_PAYLOAD_FRAMES)) == []
    assert len(join(b"", [b""] * (1 + MAX_PAYLOAD_FRAMES))) == 1 + MAX_PAYLOAD_FRAMES
