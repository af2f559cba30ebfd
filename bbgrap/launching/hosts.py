"""Hosts files: which machines a cluster is started on, and how.

    cluster: lab                          # its folder on every host; default: the file's name
    ssh_config: my_ssh_config             # default: as `ssh` finds it
    coordinator:
      address: tcp://192.168.1.10:7070    # how agents and clients reach it
      bind: tcp://*:7070                  # where it listens; default: the address
      ssh: head                           # `none`: this machine; left out: it runs already, and `up` does not touch it
      join_token: join.token              # for one that runs already: a token of role agent
    defaults: {bin: ~/bbgrap/.venv/bin}   # for the coordinator and all hosts: bin, options (agents only)
    hosts:
      - name: left                        # the agent's name; the only key that is needed
        ssh: pi@192.168.1.11              # default: the name; `none`: this machine
        bin: /opt/bbgrap/bin              # where the commands are; default: on the PATH
        cores: 0-3
        memory: 8GiB                      # plans take no more; default: what the machine has
        advertise: 10.0.0.11
        options: [--data-port, 7071]      # further ones of `bbgrap-agent`

Reading lists every fault of a file at once, each with its line. File names are relative to the file's folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from bbgrap.cluster.documents import Document
from bbgrap.cluster.types import COORDINATOR
from bbgrap.cluster.units import SIZES
from bbgrap.errors import UsageError
from bbgrap.transport.control_sockets import check_address

_FILE_KEYS = ("cluster", "ssh_config", "coordinator", "defaults", "hosts")
_COORDINATOR_KEYS = ("address", "bind", "ssh", "bin", "options", "join_token")
_HOST_KEYS = ("name", "ssh", "bin", "cores", "memory", "advertise", "options")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"), "at most 64 letters, digits, '.', '_' and '-'"
_FORMS = {
    "cores": (re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*"), "a list like 0,2-3"),
    "advertise": (re.compile(r"[\w.:\[\]-]+"), "a host name or an address"),
}
_SET_BY_UP = ("--join", "--name", "--bind", "--state-dir", "--ready-file", "--token-file", "--insecure", "--until-eof")
"""Options that the launcher gives itself, or that would leave it without a way to ask who joined."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine and the one process of the cluster that runs there."""

    name: str
    ssh: str
    """Where `ssh` connects to; empty for this machine."""
    bin: str = ""
    """The folder of the commands; empty: on the PATH. `~/` is the home there."""
    options: tuple[str, ...] = ()
    memory_bytes: int = 0
    """What plans may take; 0: what the machine has."""

    @property
    def where(self) -> str:
        """Return what people call the machine."""
        return self.ssh or "this machine"


@dataclass(frozen=True, slots=True)
class CoordinatorPlace:
    """Where the coordinator is; without a `host` it is somebody else's, and runs already."""

    address: str
    bind: str
    host: Host | None
    join_token: Path | None


@dataclass(frozen=True, slots=True)
class HostsFile:
    """What a hosts file says. Invariants: names of hosts differ."""

    path: Path
    cluster: str
    ssh_config: Path | None
    coordinator: CoordinatorPlace
    hosts: tuple[Host, ...]


def read_hosts(path: Path) -> HostsFile:
    """Read a hosts file.

    Raises:
        ClusterFileError: with every fault of the file.
    """
    document = _HostsDocument(path)
    found = document.file() if not document.faults else None
    document.report()
    assert found is not None, "a file without faults has hosts"
    return found


class _HostsDocument(Document):
    def file(self) -> HostsFile:
        entries = self.mapping(self.root, "the file", _FILE_KEYS)
        defaults = self.mapping(entries["defaults"], "'defaults'", ("bin", "options")) if "defaults" in entries else {}
        for key in ("coordinator", "hosts"):
            if key not in entries and isinstance(self.root, yaml.MappingNode):
                self.fault(self.root, f"expected the key '{key}'")
        coordinator = CoordinatorPlace("", "", None, None)
        if "coordinator" in entries:
            coordinator = self._coordinator(entries["coordinator"], defaults)
        hosts = self._hosts(entries["hosts"], defaults) if "hosts" in entries else ()
        return HostsFile(
            self.path,
            self._name(entries["cluster"], "'cluster'") if "cluster" in entries else re.sub(r"[^A-Za-z0-9._-]", "-", self.path.stem),
            self._path(entries["ssh_config"], "'ssh_config'") if "ssh_config" in entries else None,
            coordinator,
            hosts,
        )

    def _coordinator(self, root: yaml.Node, defaults: Mapping[str, yaml.Node]) -> CoordinatorPlace:
        entries = self.mapping(root, "'coordinator'", _COORDINATOR_KEYS)
        if "address" not in entries and isinstance(root, yaml.MappingNode):
            self.fault(root, "'coordinator': expected the key 'address', tcp://HOST:PORT")
        address = self._address(entries["address"], "'address'") if "address" in entries else ""
        token = self._path(entries["join_token"], "'join_token'") if "join_token" in entries else None
        if "ssh" not in entries:
            for key in ("bind", "bin", "options"):
                if key in entries:
                    self.fault(entries[key], f"'coordinator': '{key}' is for one that is started; give 'ssh', too")
            return CoordinatorPlace(address, address, None, token)
        if token is not None:
            self.fault(entries["join_token"], "'coordinator': 'join_token' is for one that runs already; this one makes its own")
        host = Host(
            COORDINATOR,
            self._destination(entries["ssh"], "'coordinator'"),
            self._bin(entries.get("bin") or defaults.get("bin")),
            self._options(entries.get("options"), "'coordinator'"),
        )
        return CoordinatorPlace(address, self._address(entries["bind"], "'bind'") if "bind" in entries else address, host, None)

    def _hosts(self, root: yaml.Node, defaults: Mapping[str, yaml.Node]) -> tuple[Host, ...]:
        if not isinstance(root, yaml.SequenceNode) or not root.value:
            self.fault(root, "'hosts': expected a list of hosts, at least one")
            return ()
        hosts: dict[str, Host] = {}
        for item in root.value:
            host = self._host(item, defaults)
            if host.name and host.name in hosts:
                self.fault(item, f"host '{host.name}': there is already one of this name")
            hosts[host.name] = host
        return tuple(hosts.values())

    def _host(self, root: yaml.Node, defaults: Mapping[str, yaml.Node]) -> Host:
        entries = self.mapping(root, "a host", _HOST_KEYS)
        if "name" not in entries:
            if isinstance(root, yaml.MappingNode):
                self.fault(root, "expected the key 'name' for a host")
            return Host("", "")
        name = self._name(entries["name"], "'name'")
        who = f"host '{name}'"
        if name == COORDINATOR:
            self.fault(entries["name"], f"a host cannot be called '{COORDINATOR}'")
        options = self._options(entries.get("options") or defaults.get("options"), who)
        for key, (form, called) in _FORMS.items():
            if key in entries:
                options = (f"--{key}", self._matching(entries[key], f"{who}: '{key}'", form, called), *options)
        memory = round(self.number(entries["memory"], f"{who}: 'memory'", SIZES, 0)) if "memory" in entries else 0
        if memory and "--profile" in options:
            self.fault(entries["memory"], f"{who}: expected 'memory' or the option --profile, got both")
        ssh = self._destination(entries["ssh"], who) if "ssh" in entries else name
        return Host(name, ssh, self._bin(entries.get("bin") or defaults.get("bin")), options, memory)

    def _options(self, root: yaml.Node | None, who: str) -> tuple[str, ...]:
        if root is None:
            return ()
        if not isinstance(root, yaml.SequenceNode):
            self.fault(root, f"{who}: 'options': expected a list of texts, as [--threads, 2]")
            return ()
        options = tuple(self.text(item, f"{who}: 'options'") for item in root.value)
        for item, option in zip(root.value, options, strict=True):
            if option.partition("=")[0] in _SET_BY_UP:
                self.fault(item, f"{who}: the option {option.partition('=')[0]} is set by 'bbgrap up'; leave it out")
        return options

    def _destination(self, node: yaml.Node, who: str) -> str:
        text = self.text(node, f"{who}: 'ssh'")
        if text.startswith("-") or any(char.isspace() for char in text):
            self.fault(node, f"{who}: 'ssh': expected [USER@]HOST, ssh://[USER@]HOST:PORT or none, got '{text}'")
        return "" if text == "none" else text

    def _bin(self, node: yaml.Node | None) -> str:
        return "" if node is None else self.text(node, "'bin'")

    def _path(self, node: yaml.Node, who: str) -> Path:
        return (self.path.parent / Path(self.text(node, who)).expanduser()).absolute()

    def _name(self, node: yaml.Node, who: str) -> str:
        return self._matching(node, who, *_NAME)

    def _matching(self, node: yaml.Node, who: str, form: re.Pattern[str], called: str) -> str:
        text = self.text(node, who)
        if text and not form.fullmatch(text):
            self.fault(node, f"{who}: expected {called}, got '{text}'")
        return text

    def _address(self, node: yaml.Node, who: str) -> str:
        text = self.text(node, f"'coordinator': {who}")
        try:
            return check_address(text) if text else ""
        except UsageError as error:
            self.fault(node, f"'coordinator': {who}: {error}")
            return ""
