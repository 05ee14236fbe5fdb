"""Observes the plain Python state that a training changes."""
