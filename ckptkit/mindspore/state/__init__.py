"""Captures, compares and restores all state of a training other than its tensors, by `StateManager`.

`manager` asks each source of state; `compatibility` compares before anything is changed; `holders` stores the user's
objects; `rewind` and `reshard` continue from another position or with another number of ranks.
"""
