import pytest

from bbgrap.errors import ClusterFileError
from bbgrap.launching.hosts import CoordinatorPlace, Host, read_hosts

SMALLEST = "coordinator: {address: 'tcp://head:7070'}\nhosts: [{name: left}]\n"
WHOLE = """
cluster: lab
ssh_config: my_config
coordinator: {address: head, bind: 'tcp://*:7070', ssh: none, bin: /opt/bin, options: [--verbose]}
defaults: {bin: ~/venv/bin, options: [--threads, 2]}
hosts:
  - {name: left, ssh: pi@left.lan, cores: 0-3, memory: 2GiB, advertise: 10.0.0.1}
  - {name: right, bin: /opt/bin, options: [--data-port, 7071]}
"""


@pytest.fixture
def read(tmp_path):
    def of(text):
        (tmp_path / "my hosts.yaml").write_text(text)
        return read_hosts(tmp_path / "my hosts.yaml")

    return of


def test_a_name_is_enough_of_a_host(read):
    found = read(SMALLEST)
    assert found.cluster == "my-hosts"
    assert found.coordinator == CoordinatorPlace("tcp://head:7070", "tcp://head:7070", None, None)
    assert found.hosts == (Host("left", "left"),)


def test_everything_that_a_file_may_say(read, tmp_path):
    found = read(WHOLE)
    assert (found.cluster, found.ssh_config) == ("lab", tmp_path / "my_config")
    own = Host("coordinator", "", "/opt/bin", ("--verbose",))
    assert found.coordinator == CoordinatorPlace("tcp://head:7070", "tcp://*:7070", own, None)
    assert found.hosts == (
        Host("left", "pi@left.lan", "~/venv/bin", ("--advertise", "10.0.0.1", "--cores", "0-3", "--threads", "2"), 2 << 30),
        Host("right", "right", "/opt/bin", ("--data-port", "7071")),
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hosts: [{name: a}]", "line 1: expected the key 'coordinator'"),
        ("coordinator: {address: a}", "expected the key 'hosts'"),
        ("coordinator: {ssh: a}\nhosts: [{name: a}]", "expected the key 'address'"),
        ("coordinator: {address: 'http://a:1'}\nhosts: [{name: a}]", "expected tcp://HOST:PORT"),
        ("coordinator: {address: a, bin: /b}\nhosts: [{name: a}]", "'bin' is for one that is started"),
        ("coordinator: {address: a, ssh: b, join_token: c}\nhosts: [{name: a}]", "'join_token' is for one that runs already"),
        ("coordinator: {address: a}\nhosts: []", "expected a list of hosts, at least one"),
        ("coordinator: {address: a}\nhosts:\n- name: a\n- name: a", "line 4: host 'a': there is already one of this name"),
        ("coordinator: {address: a}\nhosts: [{ssh: a}]", "expected the key 'name'"),
        ("coordinator: {address: a}\nhosts: [{name: coordinator}]", "cannot be called 'coordinator'"),
        ("coordinator: {address: a}\nhosts: [{name: '../a'}]", "'name': expected at most 64 letters"),
        ("coordinator: {address: a}\nhosts: [{name: a, ssh: -oProxyCommand=x}]", "'ssh': expected [USER@]HOST"),
        ("coordinator: {address: a}\nhosts: [{name: a, cores: all}]", "'cores': expected a list like 0,2-3, got 'all'"),
        ("coordinator: {address: a}\nhosts: [{name: a, advertise: '$(x)'}]", "'advertise': expected a host name"),
        ("coordinator: {address: a}\nhosts: [{name: a, memory: lots}]", "'memory': expected"),
        ("coordinator: {address: a}\nhosts: [{name: a, memory: 1GiB, options: [--profile, b]}]", "got both"),
        ("coordinator: {address: a}\nhosts: [{name: a, options: --verbose}]", "expected a list of texts"),
        ("coordinator: {address: a}\nhosts: [{name: a, options: [--join=b]}]", "--join is set by 'bbgrap up'"),
        ("coordinator: {address: a, ssh: b, options: [--insecure]}\nhosts: [{name: a}]", "--insecure is set by 'bbgrap up'"),
        ("coordinator: {address: a}\nhosts: [{name: a, speed: 3}]", "unknown key 'speed'"),
    ],
)
def test_a_fault_is_told_with_file_line_and_key(read, text, fault):
    with pytest.raises(ClusterFileError, match=r"my hosts\.yaml': line \d") as raised:
        read(text)
    assert fault in str(raised.value)


def test_all_faults_are_told_at_once(read):
    with pytest.raises(ClusterFileError) as raised:
        read("coordinator: {}\nhosts:\n- name: 1 2\n- {name: b, cores: x, memory: y}\n")
    assert str(raised.value).count("line ") == 4
