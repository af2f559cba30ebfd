"""What walks through a schedule: steps in local coordinates, execution, blocked maps, recording; for agents and `simulate` alike."""
