/* `ckptkit prune` beside a start from the very checkpoint that it removes: tools/prune.py, docs/adr/0005.
 *
 * A person started from an old checkpoint by name; another one prunes it. What the started job began with has to stay. */

bool commit = true, data = true;                /* of the checkpoint */
bool document;                                  /* attempts/N.json of the start: its parent is the checkpoint */
bool opened;                                    /* the start found its parent still there, and trains */
bool late;                                      /* a DELETE of COMMIT that timed out may still arrive */
bool was_voided;

/* The start: reads and applies, creates its attempt, looks whether its parent is still committed. */
active proctype Start() {
    if :: !commit -> goto refused :: else fi;
    document = true;
    if :: !commit -> goto refused :: else fi;
    opened = true;
refused:
    skip
}

active proctype Prune() {
    if                                          /* COMMIT first */
    :: commit = false
#ifdef LATE_DELETE
    :: late = true -> commit = false            /* no answer in time: it was sent again, and that was answered */
    :: late = true -> goto ended                /* no answer at all: an error, and nothing more is removed */
#endif
    fi;
    if                                          /* then look for a new attempt */
    :: document -> commit = true                /* put back, with the same bytes, only if absent */
    :: else -> data = false
    fi;
ended:
    skip
}

active proctype Network() {
    do
    :: d_step { late -> commit = false; late = false }
    od
}

active proctype Invariant() {                   /* once the job trains and prune is through, its parent is whole */
    Prune@ended && opened ->
    assert(commit && data)
}
