"""Implements the commands: a function for each, which takes the options as typed, prints, and returns the exit code.

It raises `ckptkit.cli.errors.WrongUsageError` for an invalid option, an error of ckptkit where a checkpoint does not
exist or cannot be used, or a storage failed, and OSError for a file that it cannot write;
`ckptkit.cli.errors.CommandGroup` makes a message and an exit code of them.
"""
