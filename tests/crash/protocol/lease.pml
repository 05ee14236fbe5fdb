/* A file that is created once on a storage that cannot refuse to overwrite: storage/lease.py, docs/adr/0003.
 *
 * Some starts create attempts/N.json under one number; each goes on while its fence check finds its own token there.
 * Time passes in ticks. A token has to stay for SETTLE of them. From the answer that it did to the end of the put, a
 * writer has less than that, for all three requests together. */

#define WRITERS 3
#define SETTLE  3

#define NONE 0

byte file, lease;                               /* who wrote it last */
byte timer[WRITERS + 1];
bool hurries[WRITERS + 1];                      /* between its token's answer and the end of its put */
bool goes_on[WRITERS + 1];                      /* passed a fence check since the file was written last */
bool replaced, both_go_on;
hidden byte w, count;

#if defined(STANDS_STILL)
#define in_time(w) true                         /* stopped there, for however long */
#else
#define in_time(w) (!hurries[w] || timer[w] < SETTLE - 1)
#endif

proctype Writer(byte me) {
again:
    if :: file != NONE -> goto lost :: else fi; /* look whether it is there */
    d_step { lease = me; timer[me] = 0 }        /* put lease.json */
    atomic { timer[me] == SETTLE -> skip };     /* wait */
    d_step {                                    /* read lease.json */
        hurries[me] = (lease == me); timer[me] = 0
    }
    if :: !hurries[me] -> goto again :: else fi;
    atomic {                                    /* look once more */
#ifdef EACH_REQUEST_IN_TIME
        timer[me] = 0;
#endif
        if :: file != NONE -> hurries[me] = false; goto lost :: else fi
    }
    d_step {                                    /* put the file */
        replaced = (file != NONE);
        for (w : 1 .. WRITERS) { goes_on[w] = false }
        file = me; hurries[me] = false
    }
#ifndef FENCE_ALONE
    assert(!replaced);
#endif
    do
    :: d_step {                                 /* fence check: is the document under the own number one's own? */
#ifdef FENCE_BY_NUMBER
            goes_on[me] = true;
#else
            goes_on[me] = (file == me);
#endif
            count = 0;
            for (w : 1 .. WRITERS) { count = count + goes_on[w] };
            both_go_on = (count > 1); count = 0
        };
        assert(!both_go_on);                    /* I2 */
        if :: !goes_on[me] -> break :: else fi
    od;
lost:
    skip
}

active proctype Time() {
    do
    :: d_step { in_time(1) && in_time(2) && in_time(3) ->
            for (w : 1 .. WRITERS) { if :: timer[w] < SETTLE -> timer[w]++ :: else fi };
            w = 0
        }
    od
}

init { atomic { run Writer(1); run Writer(2); run Writer(3) } }
