"""Captures, compares and restores all state of a training, its tensors by way of `parameters`: `StateManager`.

`manager` has the verbs, `sources` all that is asked for its state. `start` holds the order of a start, and
`examination` judges before anything is changed. `holders` store the user's objects, `settings` what is switched.
"""
