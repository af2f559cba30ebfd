"""How long work and messages take: one price of a message, the clock that walks through all devices, the timeline it makes."""
