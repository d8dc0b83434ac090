"""The command `shoal`: the process, its signals, and one function a verb."""
