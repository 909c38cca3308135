"""Ray's door: one actor for each GPU host, holding its SSH session."""
