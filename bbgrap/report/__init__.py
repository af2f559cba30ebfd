"""What people look at: traces, tables, pictures."""
