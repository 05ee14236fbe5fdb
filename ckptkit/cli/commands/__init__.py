"""Implements the commands: `run_NAME` takes the options as typed, prints, and returns the exit code.

Its docstring is the help. A parameter without typer's annotation, such as a clock, is no option. It raises
`ckptkit.cli.errors.WrongUsageError` for an invalid option, an error of ckptkit where a checkpoint does not exist or
cannot be used, or a storage failed, and OSError for a file that it cannot write.
"""
