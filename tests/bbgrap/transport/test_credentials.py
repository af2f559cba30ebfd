"""Which keys are used: given, from a file, from the environment, or those of a coordinator of this user on this machine."""

import os
import re
import tempfile

import pytest

from bbgrap.errors import AccessError, UsageError
from bbgrap.protocol.tokens import Role, Token
from bbgrap.transport.credentials import Credentials
from bbgrap.transport.local_tokens import find_token, note_token
from bbgrap.transport.locks import KeyPair

HERE, THERE = "tcp://127.0.0.1:59999", "tcp://192.0.2.1:59999"


def text(folder, name):
    token = Token(Role.CLIENT, KeyPair.make().public, KeyPair.make().secret)
    path = folder / name
    path.write_text(token.text + "\n")
    return token, path


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch, tmp_path):
    for name in ("BBGRAP_TOKEN", "BBGRAP_TOKEN_FILE", "BBGRAP_INSECURE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_what_is_nearer_is_taken_first(monkeypatch, tmp_path):
    tokens = {name: text(tmp_path, name) for name in ("given", "file", "env file", "env", "local")}

    def used(access, address=HERE):
        secret = access.lock(address).own.secret
        return next(name for name, (token, _) in tokens.items() if token.secret == secret)

    note_token(HERE, tokens["local"][1])
    assert used(Credentials()) == "local"
    monkeypatch.setenv("BBGRAP_TOKEN", tokens["env"][0].text)
    assert used(Credentials()) == "env"
    monkeypatch.setenv("BBGRAP_TOKEN_FILE", str(tokens["env file"][1]))
    assert used(Credentials()) == "env file"
    assert used(Credentials("", tokens["file"][1])) == "file"
    assert used(Credentials(tokens["given"][0].text, tokens["file"][1])) == "given"
    assert used(Credentials(tokens["given"][0].text), THERE) == "given"
    assert Credentials(insecure=True).lock(HERE) is None
    monkeypatch.setenv("BBGRAP_INSECURE", "1")
    assert Credentials().lock(HERE) is None
    assert used(Credentials("", tokens["file"][1])) == "file"
    with pytest.raises(UsageError, match="got both"):
        Credentials(tokens["given"][0].text, insecure=True)


def test_a_file_is_read_at_every_connection(tmp_path):
    (first, path), (second, other) = text(tmp_path, "a"), text(tmp_path, "b")
    access = Credentials("", path)
    assert access.lock(THERE).own.secret == first.secret
    other.replace(path)
    assert access.lock(THERE).own.secret == second.secret
    path.unlink()
    with pytest.raises(AccessError, match="it cannot be read: No such file"):
        access.lock(THERE)
    path.write_text("bbgrap-client-cut")
    with pytest.raises(AccessError, match=re.escape(f"token file '{path}': expected a token")):
        access.lock(THERE)


def test_a_file_of_an_editor_of_windows_is_a_token(tmp_path):
    token, path = text(tmp_path, "a")
    path.write_bytes(b"\xef\xbb\xbf" + token.text.encode() + b"\r\n")
    assert Credentials("", path).lock(THERE).own.secret == token.secret


def test_without_any_one_is_told_how_to_get_one():
    for address in (HERE, THERE):
        with pytest.raises(AccessError, match=r"give --token-file FILE, or set BBGRAP_TOKEN.*--role agent.*start it first"):
            Credentials().lock(address)


def test_a_program_gets_the_same(tmp_path, monkeypatch):
    token, path = text(tmp_path, "a")
    for access in (Credentials(token.text), Credentials("", path), Credentials(insecure=True)):
        expected = access.lock(THERE)
        with monkeypatch.context() as patch:
            for name, value in access.environment().items():
                patch.setenv(name, value)
            found = Credentials().lock(THERE)
            assert found == expected or found.own == expected.own


def test_a_note_is_believed_for_this_machine_and_from_this_user_alone(tmp_path):
    _, path = text(tmp_path, "a")
    note = note_token("tcp://0.0.0.0:59999", path)
    assert find_token("tcp://localhost:59999") == path
    assert find_token(HERE) == path
    assert find_token("tcp://127.0.0.1:59998") is None
    assert find_token(THERE) is None
    note.chmod(0o644)
    assert find_token(HERE) is None
    note.chmod(0o600)
    note.parent.chmod(0o755)
    assert find_token(HERE) is None
    with pytest.raises(PermissionError, match="not this user's alone"):
        note_token(HERE, path)
    note.parent.chmod(0o700)
    assert find_token(HERE) == path
    note.write_text(4096 * "/" + str(path))
    assert find_token(HERE) is None
    note.rename(tmp_path / "aside")
    note.symlink_to(tmp_path / "aside")
    assert find_token(HERE) is None
    assert os.stat(path).st_size  # noqa: PTH116 - the token itself was not touched


def test_where_nothing_temporary_can_be_written_there_is_no_local_token(monkeypatch):
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/dev/null"])
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert find_token(HERE) is None
