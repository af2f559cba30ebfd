"""What the reference pages say of the code is what the code says."""

from tools import commands_page, protocol_page


def test_the_protocol_page_has_the_messages_numbers_and_diagrams_of_the_code():
    text = protocol_page.PAGE.read_text()
    assert protocol_page.redrawn(text) == text, "run: python tools/protocol_page.py"


def test_the_page_of_commands_has_the_options_of_the_commands():
    assert commands_page.page() == commands_page.PAGE.read_text(), "run: python tools/commands_page.py"
