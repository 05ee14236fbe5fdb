"""What acts on stored runs, beside or without a training: copy, verify, diff, prune, interchange, report, doctor.

Each has a package; the command line is `ckptkit.cli`. Nothing below imports them.
"""
