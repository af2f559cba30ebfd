import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.errors import AccessError
from bbgrap.protocol.tokens import Role, Token

KEYS = st.binary(min_size=32, max_size=32)
TOKENS = st.builds(Token, st.sampled_from(Role), KEYS, KEYS)


@given(TOKENS, st.sampled_from(["", " ", "\n"]))
def test_a_token_is_read_as_it_was_printed(token, around):
    assert Token.parse(around + token.text + around, "a test") == token


@given(TOKENS, st.data())
def test_a_text_that_is_cut_or_mistyped_is_refused_without_showing_it(token, data):
    place = data.draw(st.integers(0, len(token.text) - 1))
    other = data.draw(st.characters(exclude_characters=token.text[place], codec="utf-8"))
    for text in (token.text[:place], token.text[:place] + other + token.text[place + 1 :]):
        try:
            assert Token.parse(text, "a test") == token, "it was read as another token"
        except AccessError as error:
            assert token.text[20:] not in str(error)  # noqa: PT017 - another text may be read as the same token


@given(st.text(max_size=120))
def test_anything_else_is_no_token(text):
    with pytest.raises(AccessError, match="a test: expected a token"):
        Token.parse(text, "a test")
