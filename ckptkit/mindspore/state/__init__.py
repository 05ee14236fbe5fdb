"""Captures, compares and restores all state of a training other than its tensors, by `StateManager`.

`manager` has the verbs, `sources` all that is asked for its state. `restore` and `fresh_start` hold the order of a
start: `compatibility` compares, and `examination` judges, before anything is changed. `holders` stores the user's
objects; `rewind` and `reshard` continue from another position or with another number of ranks.
"""
