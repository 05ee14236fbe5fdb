"""Runs the user's script as lives under a plan, and traces what each of them did."""
