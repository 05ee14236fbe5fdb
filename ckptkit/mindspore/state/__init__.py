"""Captures, compares and restores all state of a training, its tensors by way of `parameters`: `StateManager`.

`manager` has the verbs, `sources` all that is asked for its state. `restore` holds the order of a start, and
`findings` judges before anything is changed. `stateful_objects` stores the user's objects, `cell_settings` what is
switched.
"""
