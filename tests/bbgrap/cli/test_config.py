import subprocess

import pytest

from bbgrap.errors import ClusterUnavailableError


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.delenv("BBGRAP_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    users, projects = tmp_path / "home" / "bbgrap.toml", tmp_path / "project" / "bbgrap.toml"
    users.write_text("[bbgrap]\nagents = 3\nsplit = 'columns'\n[bbgrap-agent]\nthreads = 4\n")
    projects.write_text("[bbgrap.plan]\nsplit = 'channels'\n")
    return users, projects


def setting(shown, option, command="", program="bbgrap"):
    return next(row for row in shown["settings"] if (row["program"], row["command"], row["option"]) == (program, command, option))


def test_every_value_is_shown_with_where_it_is_said(run_json, files, monkeypatch):
    monkeypatch.setenv("BBGRAP_SEED", "7")
    monkeypatch.setenv("BBGRAP_SEEED", "7")
    shown = run_json("config")
    assert shown["files"] == [str(path) for path in files]
    found = {
        (command, option): (row["value"], row["from"])
        for command, option in (("plan", "split"), ("submit", "split"), ("plan", "agents"), ("bench", "seed"), ("bench", "threads"))
        for row in [setting(shown, option, command)]
    }
    assert found == {
        ("plan", "split"): ("channels", str(files[1])),
        ("submit", "split"): ("columns", str(files[0])),
        ("plan", "agents"): (3, str(files[0])),
        ("bench", "seed"): ("7", "variable BBGRAP_SEED"),
        ("bench", "threads"): (None, "default"),
    }
    assert setting(shown, "threads", program="bbgrap-agent")["value"] == 4
    assert setting(shown, "bind", program="bbgrap-coordinator")["value"] == "tcp://127.0.0.1:7070"
    assert shown["unused_variables"] == ["BBGRAP_SEEED"]


def test_the_table_names_files_and_stray_variables(run, files, monkeypatch):
    monkeypatch.setenv("BBGRAP_SEEED", "7")
    result = run("config")
    assert f"user's file: {files[0]}" in result.stdout
    assert "variable BBGRAP_SEEED is no option's" in result.stderr


def test_the_command_line_goes_before_variables_the_projects_file_and_the_users(run, files, monkeypatch):
    def planner(*args):
        return run("plan", "zoo:tiny", *args).stderr.rpartition("got ")[2].strip()

    files[0].write_text("[bbgrap]\nagents = 2\nplanner = 'the-users'\n")
    assert planner() == "'the-users'"
    files[1].write_text("[bbgrap]\nplanner = 'the-projects'\n")
    assert planner() == "'the-projects'"
    monkeypatch.setenv("BBGRAP_PLANNER", "the-variables")
    assert planner() == "'the-variables'"
    assert planner("--planner", "the-lines") == "'the-lines'"


def test_a_wrong_file_is_one_line(run, files):
    files[0].write_text("[bbgrap]\nplaner = 'single'\n")
    result = run("zoo")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [f"bbgrap: settings file '{files[0]}': [bbgrap] there is no 'planer'; did you mean 'planner'?"]
    assert run("--help").exit_code == 0


@pytest.mark.parametrize("program", ["bbgrap-agent", "bbgrap-coordinator"])
def test_the_other_programs_take_settings_too(program, files):
    files[0].write_text(f"[{program}]\ntreads = 4\n")
    done = subprocess.run([program, "--verbose"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{program}: settings file '{files[0]}': [{program}] there is no 'treads'")
    assert subprocess.run([program, "--help"], capture_output=True, check=False).returncode == 0


AT = "tcp://127.0.0.1:9"


@pytest.mark.parametrize(
    ("files_say", "variables", "options", "told"),
    [
        (("", "agents = 0x1"), {}, ("--coordinator", AT), "no coordinator answers"),
        (("", "agents = 1"), {"BBGRAP_COORDINATOR": AT}, (), "no coordinator answers"),
        ((f"coordinator = '{AT}'", "agents = 1"), {}, (), "no coordinator answers"),
        (("", ""), {"BBGRAP_AGENTS": "1"}, ("--coordinator", AT), "no coordinator answers"),
        (("", ""), {"BBGRAP_COORDINATOR": AT}, ("--agents", "1"), "starting a coordinator and 1 agent"),
        (("", ""), {}, ("--agents", "1", "--coordinator", AT), "expected --agents or --coordinator, got both"),
    ],
)
def test_what_is_said_nearest_chooses_the_cluster(run, files, monkeypatch, files_say, variables, options, told):
    def local(*_):
        raise ClusterUnavailableError("a local cluster")

    monkeypatch.setattr("bbgrap.cli.clusters.LocalCluster", local)
    for file, text in zip(files, files_say, strict=True):
        file.write_text(f"[bbgrap]\n{text}\n")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = run("submit", "zoo:tiny", *options)
    assert told in result.stderr
    assert ("a local cluster" in result.stderr) == told.startswith("starting")
