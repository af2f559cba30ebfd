"""Who decides what when: state machines of coordinator, agent and client. Events and the time in, instructions out; no socket, no clock."""
