"""What a nanny tells its worker."""

from bbgrap_agent.worker_settings import WorkerSettings


def test_settings_pass_a_command_line():
    settings = WorkerSettings("--odd name", 2, "host", "tcp", "/a b/c", True, False, 1 << 40, nanny=5, pipe=6, listener=7, progress=8)
    assert WorkerSettings.parse(settings.argument()) == settings
