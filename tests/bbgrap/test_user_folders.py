from pathlib import Path

import pytest

from bbgrap.errors import UsageError
from bbgrap.user_folders import cache_folder, settings_folder


@pytest.mark.parametrize(
    ("folder", "variable", "usual"), [(cache_folder, "XDG_CACHE_HOME", ".cache"), (settings_folder, "XDG_CONFIG_HOME", ".config")]
)
def test_where_files_are(monkeypatch, tmp_path, folder, variable, usual):
    monkeypatch.setenv(variable, "/somewhere")
    assert folder() == Path("/somewhere/bbgrap")
    monkeypatch.delenv(variable)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert folder() == tmp_path / usual / "bbgrap"

    def nowhere():
        raise RuntimeError

    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(UsageError, match=f"no home folder: set HOME or {variable}"):
        folder()
