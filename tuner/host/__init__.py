"""The GPU host: its SSH connection, the agent and supervisor that run there, and the steps of a launch on it."""
