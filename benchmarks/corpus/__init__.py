"""Trainings whose truth is known, and a runner that tells what a killed and resumed one of each becomes."""
