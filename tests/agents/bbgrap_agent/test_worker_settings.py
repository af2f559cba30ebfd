"""What a nanny tells its worker."""

from bbgrap_agent.worker_settings import Settings


def test_settings_pass_a_command_line():
    settings = Settings("--odd name", 2, "host", "tcp", "/a b/c", 1, 0, 1 << 40, nanny=5, pipe=6, listener=7, progress=8)
    assert Settings.parse(settings.arguments()) == settings
