/* A copy, or the upload to a mirror on a local file system, and a power cut: checkpoint/transfer.py, storage/local.py.
 *
 * A file is there for whoever reads it as soon as it was written: the page cache has it. On the disk it is after an fsync.
 * A try may end at any step, by an error or a kill; the next one, of the same process or another, finds what is there. */

#define TRIES 3

typedef File { bool there, durable, lost };     /* lost: an fsync failed, and a later one covers nothing of it */
File shard, frozen, commit;                     /* of the checkpoint; frozen may be another one's as well */
bool other_commit;                              /* of another checkpoint, durable, which has the frozen shard */
bool told;                                      /* the upload said that the checkpoint is at the mirror */
bool cut;

/* Writes a new file, and fsyncs it. */
inline write(file) {
    atomic { file.there = true; file.durable = false; file.lost = false }
    flush(file)
}

/* An fsync: it works, or fails, after which the system has forgotten what was to be written. */
inline flush(file) {
    if
    :: file.durable = true
    :: atomic { file.lost = true; goto failed }
    :: goto failed                              /* killed before it */
    fi
}

/* The fsync of the folder that names COMMIT. Where it fails, COMMIT is taken away, and made anew by the next try. */
inline flush_commit() {
    if
    :: d_step { commit.durable = (commit.durable || !commit.lost) }
#ifdef BELIEVES_A_SECOND_FSYNC
    :: atomic { commit.lost = !commit.durable; goto failed }
#else
    :: atomic { commit.there = false; commit.durable = false; commit.lost = false; goto failed }
#endif
    :: goto failed                              /* killed before it */
    fi
}

/* What is found may be believed, is in the way, or is not there. */
inline transfer(file, vouched_for) {
    if
#ifdef BELIEVES_THE_CACHE
    :: file.there -> skip                       /* its digest is right: proven */
#else
    :: file.there && (vouched_for) -> skip      /* a COMMIT says that it was written whole and durably */
    :: file.there && !(vouched_for) -> d_step { file.there = false; file.durable = false }; write(file)
#endif
    :: !file.there -> write(file)
    fi
}

active proctype Upload() provided (!cut) {
    byte tries;
    if
    :: d_step { other_commit = true; frozen.there = true; frozen.durable = true }
    :: skip
    fi;
again:
    if
    :: commit.there ->                          /* "present" */
#ifndef BELIEVES_A_COMMIT
        flush_commit();                         /* asked for again: it may have been seen before its folder was fsynced */
#endif
        skip
    :: else ->
        transfer(shard, false);
#ifdef REWRITES_WHAT_OTHERS_NEED
        transfer(frozen, false);
#else
        transfer(frozen, other_commit);
#endif
        commit.there = true;                    /* link() */
        flush_commit()
    fi;
    told = true;
    goto ended;
failed:
    if :: tries < TRIES -> tries++; goto again :: else fi;
ended:
    skip
}

/* A power cut: each file that is not durable is there afterwards, or is not. */
inline survive(file) {
    if
    :: !file.durable -> file.there = false
    :: true
    fi
}

active proctype Power() {
    atomic {
        cut = true;
        survive(shard); survive(frozen); survive(commit);
        assert(!commit.there || (shard.there && frozen.there));         /* a COMMIT stands over whole files */
        assert(!other_commit || frozen.there);                          /* also another one's */
        assert(!told || commit.there)                                   /* I1: what was said to be there is there */
    }
}
