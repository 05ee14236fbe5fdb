"""Touches what belongs to the process: its console, its floating-point mode, and what runs as it ends."""
