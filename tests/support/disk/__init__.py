"""What a disk holds when the power goes: a recorder of all that changes it, and the states that its log allows.

`recorder` has the disk under a process, `model` what may lie on it after a cut, `cuts` which of that to look at;
`device` writes down what a real file system does.
"""
