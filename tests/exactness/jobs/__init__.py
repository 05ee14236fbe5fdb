"""Jobs that are killed and started again: each resume is the uninterrupted run, or is refused with advice."""
