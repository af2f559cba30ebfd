"""What operators look at, made of a coordinator's status and of recorded requests: text, metrics, spans, and the lines of logs."""
