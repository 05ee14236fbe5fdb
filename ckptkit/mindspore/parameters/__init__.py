"""Finds the tensors of a training, says what each is for, and writes stored bits back into them.

`parameters` finds them, `roles` says what each is for, `tracked` keeps their memory from save to save, `restore` and
`apply` write bits back.
"""
