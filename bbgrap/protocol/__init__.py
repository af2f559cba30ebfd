"""Messages, their encoding, and the state machines of agents, coordinator and clients: no socket, no clock, no thread."""
