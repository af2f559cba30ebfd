"""What settings do to the real programs' commands."""

import pytest
import typer
from bbgrap_agent.main import app as agent
from bbgrap_coordinator.main import app as coordinator
from typer.main import get_command

from bbgrap.cli.main import app
from bbgrap.errors import UsageError
from bbgrap.settings.files import PROJECT_KEYS, SettingsFile
from bbgrap.settings.options import commands_of, defaults_of, key_of, options_of

PROGRAMS = {"bbgrap": app, "bbgrap-agent": agent, "bbgrap-coordinator": coordinator}


def defaults(tables, program="bbgrap"):
    command = get_command(PROGRAMS[program])
    files = tuple(SettingsFile(f"{number}.toml", each) for number, each in enumerate(tables))
    return defaults_of(command, program, typer.Context(command), files)


def test_what_is_said_for_all_commands_reaches_those_that_have_it():
    found = defaults([{"bbgrap": {"planner": "single", "coordinator": "tcp://a:1", "submit": {"planner": "tofu"}}}])
    assert found["plan"] == {"planner": "single"}
    assert found["submit"] == {"planner": "tofu", "coordinator": "tcp://a:1"}
    assert found["token"]["create"] == {"coordinator": "tcp://a:1"}
    assert found["zoo"] == {}


def test_a_later_file_goes_first():
    found = defaults([{"bbgrap": {"submit": {"planner": "tofu", "seed": 1}}}, {"bbgrap": {"planner": "single"}}])
    assert found["submit"] == {"planner": "single", "seed": 1}


def test_what_a_group_is_told_is_for_its_commands_too():
    found = defaults([{"bbgrap": {"profile": {"coordinator": "tcp://a:1", "node": "left"}}}])
    assert {key: found["profile"][key] for key in ("coordinator", "node")} == {"coordinator": "tcp://a:1", "node": "left"}
    assert found["profile"]["add"] == {"coordinator": "tcp://a:1"}


def test_other_programs_have_tables_of_their_own():
    tables = [{"bbgrap-agent": {"threads": 4, "compile": False}, "bbgrap-coordinator": {"data-plane": "plain"}}]
    assert defaults(tables, "bbgrap-agent") == {"threads": 4, "compiling": False}
    assert defaults(tables, "bbgrap-coordinator") == {"data_plane": "plain"}
    assert defaults(tables)["submit"] == {}


@pytest.mark.parametrize(
    ("program", "tables", "said"),
    [
        ("bbgrap", {"planner": "single"}, r"0.toml': there is no 'planner'.*options stand in tables"),
        ("bbgrap", {"bbgrab": {}}, "did you mean 'bbgrap'"),
        ("bbgrap", {"bbgrap": {"planer": "single"}}, r"\[bbgrap\] there is no 'planer'; did you mean 'planner'"),
        ("bbgrap", {"bbgrap": {"submt": {"seed": 1}}}, "did you mean 'submit'"),
        ("bbgrap", {"bbgrap": {"submit": {"runs": 1}}}, r"\[bbgrap.submit\] there is no 'runs'"),
        ("bbgrap", {"bbgrap": {"submit": 3}}, "there is no 'submit'"),
        ("bbgrap", {"bbgrap": {"token_file": "x"}}, "did you mean 'token-file'"),
        ("bbgrap", {"bbgrap": {"insecure": True}}, "on the command line only"),
        ("bbgrap", {"bbgrap": {"seed": "many"}}, r"\[bbgrap.simulate\] seed: .*integer"),
        ("bbgrap", {"bbgrap": {"threads": 0}}, "threads: .* greater than or equal to 1"),
        ("bbgrap", {"bbgrap": {"verify": "yes"}}, "verify: expected true or false, got 'yes'"),
        ("bbgrap", {"bbgrap": {"planner": True}}, "planner: expected a text or a number, got True"),
        ("bbgrap", {"bbgrap": {"input": "x=1x3"}}, "input: expected a list"),
        ("bbgrap-agent", {"bbgrap-agent": {"jion": "tcp://a:1"}}, "did you mean 'join'"),
        ("bbgrap-coordinator", {"bbgrap-coordinator": {"data-plane": "ssh"}}, r"data-plane: .*tls"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(program, tables, said):
    with pytest.raises(UsageError, match=said):
        defaults([tables], program)


def test_every_option_has_a_key_and_a_variable_of_its_own():
    """Two options of one program with one key would share a variable; a command called like an option could not be told from it."""
    for name, each in PROGRAMS.items():
        program = get_command(each)
        for path, command in commands_of(program):
            keys = [key_of(option) for option in options_of(command)]
            assert len(keys) == len(set(keys)), (name, path)
            assert not set(keys) & set(getattr(command, "commands", {})), (name, path)


def test_what_a_projects_file_may_set_exists():
    program = get_command(app)
    assert {key_of(option) for _, command in commands_of(program) for option in options_of(command)} >= PROJECT_KEYS
