"""Programs: what every machine runs, sends and receives. Build, optimise, export, simulate."""
