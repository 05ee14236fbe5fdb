"""`StateManager`: everything of a training beside its tensors, captured, compared with a checkpoint and restored.

`manager` asks each source of state; `compatibility` compares before anything is changed; `holders` stores objects of
the user's; `rewind` and `reshard` go on at another place or with another number of ranks.
"""
