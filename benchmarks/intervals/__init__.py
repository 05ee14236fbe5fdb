"""Plays trainings through published failure traces, to compare ``SaveEvery.auto`` with the best fixed interval."""
