"""The wire format: messages, their encoding, limits and version. No socket, no clock."""
