"""Reads calls.

`call` holds the parts of one call and tells what it gives, `binding` gives its arguments to the called function, and
`calls` reads calls and follows them into the functions of the user's.
"""
