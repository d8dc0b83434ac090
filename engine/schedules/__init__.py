"""The schedules: which clients take part, and from which model they train."""
