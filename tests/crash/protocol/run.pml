/* One run on one root: attempts, fence, commit, void, retention, sweep. docs/format.md, "Writing", "Starting", "Retention".
 *
 * A step of the model is one request to the storage, or one look at it; what stands between `d_step {` and `}` happens at
 * once. A process that is never scheduled again has died. docs/protocol.md says what the names after #ifdef stand for.
 *
 * To see the steps that break a promise, in a copy of this folder (-i finds shorter ones):
 *     spin -DBEGUN_ANEW -DFENCE_BY_NUMBER -a run.pml
 *     gcc -O1 -DSAFETY -DCOLLAPSE -DREACH -o pan pan.c && ./pan -E -i -m1000
 *     spin -DBEGUN_ANEW -DFENCE_BY_NUMBER -t -p -g -l run.pml */

#define ATTEMPTS 3
#define PLACES   4                              /* progress at which saves happen */
#define SIZE     12                             /* folders: ATTEMPTS * PLACES */

#define NONE 0
#define VOID 9                                  /* COMMIT as {"void_by": ...} */
#define DEAD 4                                  /* the token of a job of long ago */

#define folder(a, p)  (((a) - 1) * PLACES + (p))        /* in the order of names: 1 to SIZE */
#define attempt(f)    (((f) - 1) / PLACES + 1)
#define place(f)      (((f) - 1) % PLACES + 1)

/* What lies on the storage. Documents and COMMITs hold the token of whoever made them, shards too: by their digests. */
byte run_json;
byte document[ATTEMPTS + 1];
byte parent[ATTEMPTS + 1];                      /* the folder that attempts/N.json names; NONE for a fresh start */
byte frozen[ATTEMPTS + 1];                      /* a bit for each token: keys hold digests */
byte commit[SIZE + 1];
byte data[SIZE + 1];                            /* shards, rank file, manifest */

bool away;                                      /* checkpoints/ is an empty mount point */
byte starts_while_away;                         /* the only job that runs then */
byte late, late_by;                             /* a create of COMMIT, by its token, or a delete, that is still on its way */
bool one_was_late;
byte deleting;                                  /* jobs between a fence check and what they delete after it */

/* What the jobs know, and what must hold. */
bool reported[SIZE + 1];                        /* save() returned this name */
byte run_of[DEAD + 1];                          /* run.json when the job opened its attempt */
byte overdue[4];                                /* COMMITs that a job sent after another one owned the run */
bool lost, two_commit, began_afresh, hollow;    /* what I1, I2, I3 and I4 forbid */

/* Of a single step: not part of a state. */
hidden byte f, g, a, head, best, count, last;
hidden byte line[SIZE + 1];                     /* whether a folder is on the lineage */

#define real(f)   (commit[f] != NONE && commit[f] != VOID)
#define seen(f)   (!away && real(f))
#define there(f)  (!away && (commit[f] != NONE || data[f] != NONE))
#define whole(f)  (real(f) && data[f] == commit[f] && (frozen[attempt(f)] & (1 << commit[f])) && document[attempt(f)] == commit[f])

#ifdef COUNT_FOREIGN
#define counts(f) seen(f)
#else
#define counts(f) (seen(f) && commit[f] == document[attempt(f)])
#endif

/* The lineage of attempt n: all that is its own, and up to the parent of each attempt on the way. */
inline walk(n) {
    for (f : 1 .. SIZE) { line[f] = false }
    a = n; last = PLACES;
    do
    :: a == 0 || document[a] == NONE -> break
    :: else ->
        for (f : folder(a, 1) .. folder(a, last)) { line[f] = true }
        if
        :: parent[a] == NONE -> a = 0
        :: else -> last = place(parent[a]); a = attempt(parent[a])
        fi
    od
}

/* Sets `best`: the newest on the lineage that counts. */
inline newest_on_line() {
    best = NONE;
    for (f : 1 .. SIZE) { if :: line[f] && counts(f) -> best = f :: else fi }
}

/* Sets `count`: the COMMITs of attempt n itself, whoever made them. */
inline count_own(n) {
    count = 0;
    for (f : folder(n, 1) .. folder(n, PLACES)) { if :: seen(f) -> count++ :: else fi }
}

/* Sets `head` and `best`, as run/resolve.py does, as if the attempts in `ignored` had never been. */
inline choose(ignored) {
    head = ATTEMPTS; best = NONE;
    do
    :: head == 0 -> break
    :: else ->
        if
        :: document[head] == NONE || (ignored & (1 << head)) -> skip
        :: else ->
            count_own(head);
            if
            :: count == 0 && parent[head] != NONE &&
#ifdef EMPTY_ATTEMPT_COUNTS
               !seen(parent[head]) ->
#else
               true ->                          /* it committed nothing, so it has no say */
#endif
                skip
            :: else ->
                walk(head); newest_on_line();
                if :: best != NONE -> break :: else fi
            fi
        fi;
        head--
    od
}

/* Sets `high`: the highest number in sight, of documents and of folders of attempts whose document is gone. */
inline find_highest(high) {
    high = 0;
    for (f : 1 .. SIZE) { if :: there(f) -> high = attempt(f) :: else fi }
    for (a : high + 1 .. ATTEMPTS) { if :: document[a] != NONE -> high = a :: else fi }
}

/* Sets `count`: whether a start that finds no checkpoint has to be refused. */
inline refuse_afresh() {
    count = 0;
    for (f : 1 .. SIZE) { if :: seen(f) -> count = 1 :: else fi }       /* commits that no attempt leads to */
#ifndef FRESH_WHEN_AWAY
    for (a : 1 .. ATTEMPTS) { if :: document[a] != NONE && parent[a] != NONE -> count = 1 :: else fi }
#endif
}

#ifdef FENCE_BY_NUMBER
#define BY_TOKEN false
#else
#define BY_TOKEN true
#endif

/* Sweep: sets `g` to a folder of an attempt below n without COMMIT, or void with data; to NONE if there is none. */
inline next_to_sweep() {
    g = NONE;
    for (f : 1 .. folder(n, 0)) {
        if :: there(f) && data[f] != NONE && !real(f) -> g = f :: else fi
    }
}

/* Sweep: sets `g` to an attempt below n whose frozen shards may go; to NONE if there is none. */
inline next_frozen() {
    best = NONE; last = NONE;                   /* the newest commit of all, and the one before it */
    for (f : 1 .. SIZE) { if :: seen(f) -> last = best; best = f :: else fi }
    g = NONE;
    for (a : 1 .. n - 1) {
        count_own(a);
        head = 0;                               /* what shows that its commits are not just away: */
        for (f : folder(a, 1) .. folder(a, PLACES)) { if :: there(f) -> head = 1 :: else fi }
        if :: last != NONE && attempt(last) > a -> head = 1 :: else fi;         /* two later ones do without them */
#ifdef SWEEP_FROZEN_BLINDLY
        head = 1;
#endif
        if :: frozen[a] && !count && head -> g = a :: else fi
    }
}

/* Sweep: sets `g` to a void marker of an attempt below those of the two newest commits on the lineage; to NONE if none. */
inline next_void() {
    walk(n);
    best = NONE; last = NONE; g = NONE;
    for (f : 1 .. SIZE) { if :: line[f] && counts(f) -> last = best; best = f :: else fi }
#ifdef FORGETS_VOIDS_AT_ONCE
    last = folder(n, 1);
#endif
    for (f : 1 .. folder(n, 0)) {
        if :: there(f) && commit[f] == VOID && data[f] == NONE && last != NONE && attempt(f) < attempt(last) -> g = f :: else fi
    }
}

/* Retention: frozen shards that may go, of the attempts in `touched`, which were seen with a commit. */
inline next_frozen_of(touched) {
    g = NONE;
    for (a : 1 .. n - 1) {
        count_own(a);
        if :: frozen[a] && !count && (touched & (1 << a)) -> g = a :: else fi
    }
}

/* Retention: sets `doomed` to what attempt n may remove, all of its lineage but the two newest commits. */
inline choose_doomed(n, doomed) {
    walk(n);
    count = 0; doomed = 0;
    for (g : 1 .. SIZE) {
        f = SIZE + 1 - g;                       /* newest first */
        if
        :: line[f] && counts(f) -> count++; if :: count > 2 -> doomed = doomed | (1 << f) :: else fi
        :: else
        fi
    }
}

/* Sets `count`: whether another process owns the run: a later document, another in one's place, another run.json. */
inline look_for_owner(n, me) {
    count = document[n] != me && (document[n] != NONE || (run_json != NONE && run_json != run_of[me]));
    for (a : n + 1 .. ATTEMPTS) { if :: document[a] != NONE -> count = 1 :: else fi }
}

/* Asked at any moment. I1: a reported commit is on the head's lineage, and whole or below two whole ones. I4: no COMMIT
 * stands over files that are not there, but one below two whole ones: where a request to create it was sent twice, the
 * late one may come after retention. */
inline look_for_losses() {
    choose(0);
    if :: best == NONE -> for (f : 1 .. SIZE) { line[f] = false } :: else -> walk(head) fi;
    for (f : 1 .. SIZE) {
        count = 0;
        for (g : f + 1 .. SIZE) { if :: line[g] && whole(g) -> count++ :: else fi };
        if :: reported[f] && (!line[f] || (!whole(f) && count < 2)) -> lost = true :: else fi;
#ifdef NOT_EVEN_OLD_ONES
        count = 0;
#endif
#ifndef BEGUN_ANEW
        if :: real(f) && data[f] != commit[f] && count < 2 -> hollow = true :: else fi
#endif
    }
}

active proctype Invariants() {
    do
    :: d_step { !away && !lost && !hollow -> look_for_losses(); count = 0 }
#ifndef WITHOUT_I1
    :: assert(!lost)
#endif
    :: assert(!hollow)
    od
}

/* Creates the own document again, or learns whose is there. */
inline put_back() {
    if
    :: stale
    :: else ->
        if :: document[n] == NONE -> document[n] = me; parent[n] = begun_at :: else fi;
        stale = document[n] != me && BY_TOKEN
    fi
}

/* run/attempt.py, check_fence. Sets `stale`, and `gone` where the document is and may not be put back. */
inline fence(may_put_back) {
    d_step {                                    /* list attempts/ */
        stale = false; gone = false;
        for (a : n + 1 .. ATTEMPTS) { if :: document[a] != NONE -> stale = true :: else fi }
    }
    if
    :: stale
    :: else ->
        d_step {                                /* read the own document */
            owner = document[n];
            if :: owner != NONE && !BY_TOKEN -> owner = me :: else fi;
            if :: owner == me -> reported[committed] = (committed != NONE) :: else fi;
            committed = NONE
        }
        if
        :: owner == NONE && may_put_back ->
#ifdef PUT_BACK_STALLS                          /* between its two requests */
            d_step { stale = run_json != NONE && run_json != run_of[me] && BY_TOKEN; owner = NONE }
            d_step { put_back(); owner = NONE }
#else
            d_step { stale = run_json != NONE && run_json != run_of[me] && BY_TOKEN; put_back(); owner = NONE }
#endif
        :: else ->
            d_step { gone = (owner == NONE); stale = (owner != me && owner != NONE); owner = NONE }
        fi
    fi
}

/* A request to create a COMMIT arrives: only if there is none. */
inline create(f, content) { if :: commit[f] == NONE -> commit[f] = content :: else fi }

/* A job: its start and its saves. It dies at any step by not being scheduled any more. */
proctype Job(byte me; byte fresh_place; byte most_saves) provided (!away || _pid == starts_while_away) {
    byte n, begun_at, high, owner, at, saves, ignored, committed, undecided, touched, i;
    short doomed;
    bool stale, gone;

begin:
    skip;
    d_step {                                    /* Starting 1: list, choose */
        choose(ignored); begun_at = best; stale = false;
        if :: best == NONE -> refuse_afresh(); stale = count :: else fi;
        find_highest(high)
    }
    if :: stale || high == ATTEMPTS -> goto stopped :: else fi;
    if                                          /* Starting 2: read, verify, apply */
    :: begun_at != NONE && !seen(begun_at) -> begun_at = NONE; high = 0; goto begin
    :: begun_at != NONE && seen(begun_at) && !whole(begun_at) -> goto stopped
    :: else
    fi;
    d_step {                                    /* run.json, only if absent */
        if :: run_json == NONE -> run_json = me :: else fi;
        run_of[me] = run_json;
        n = high + 1; high = 0
    }
    d_step {                                    /* Starting 3: create the document */
        stale = document[n] != NONE;
        if :: stale -> n = 0 :: else -> document[n] = me; parent[n] = begun_at fi
    }
    if :: stale -> goto begin :: else fi;
    fence(false);
    if :: stale || gone -> goto stopped :: else fi;
    d_step {                                    /* list again: the same choice, and the parent still there? */
        ignored = ignored | (1 << n);
        choose(ignored);
        stale = best != begun_at || (begun_at != NONE && !seen(begun_at));
#ifdef WITHOUT_SECOND_LOOK
        stale = false;
#endif
        look_for_owner(n, me);
        if
        :: !stale && begun_at == NONE && !count ->      /* I3; one that is overtaken learns of it before it trains */
            for (f : 1 .. SIZE) { if :: reported[f] && whole(f) -> began_afresh = true :: else fi }
        :: else
        fi;
        count = 0
    }
#ifndef WITHOUT_I3
    assert(!began_afresh);
#endif
    if :: stale -> n = 0; goto begin :: else fi;

    ignored = 0;
    deleting++;
    fence(false);                               /* Starting 4: sweep */
    if :: stale || gone -> deleting--; goto stopped :: else fi;
    do                                          /* each folder of a lower attempt without COMMIT, or void with data */
    :: d_step { next_to_sweep(); i = g } ->
        if :: i == NONE -> break :: else fi;
#ifdef WITHOUT_VOID
        d_step { if :: !real(i) -> data[i] = NONE :: else fi; i = NONE };
#else
        d_step { create(i, VOID) }
        d_step { if :: there(i) && commit[i] == VOID -> data[i] = NONE :: else fi; i = NONE };
#endif
        skip
    od;
    do
    :: d_step { next_frozen(); i = g } ->
        if :: i == NONE -> break :: else fi;
        d_step { frozen[i] = NONE; i = NONE }
    od;
    do                                          /* each void marker that stands below two newer commits */
    :: d_step { next_void(); i = g } ->
        if :: i == NONE -> break :: else fi;
        d_step { commit[i] = NONE; i = NONE }
    od;
    deleting--;

    if :: begun_at == NONE -> at = folder(n, fresh_place) :: else -> at = folder(n, place(begun_at) + 1) fi;
    do
    :: saves == most_saves || attempt(at) != n -> break
    :: else ->
        saves++;
        fence(true);                            /* Writing 1 */
        if :: stale -> goto stopped :: else fi;
        if
        :: undecided != NONE ->                 /* the folder of a save that failed: void it, then empty it */
            d_step { create(undecided, VOID) }
            d_step { if :: commit[undecided] == VOID -> data[undecided] = NONE :: else fi; undecided = NONE }
        :: else
        fi;
        if                                      /* Writing 2: every file, durably; none is overwritten */
        :: d_step { data[at] == NONE && commit[at] == NONE -> data[at] = me; frozen[n] = frozen[n] | (1 << me) }
        :: else -> goto next                    /* another process writes here */
        fi;
#ifndef WITHOUT_FENCE_BEFORE_COMMIT
        fence(false);                           /* Writing 3 */
#endif
        if :: stale -> goto stopped :: else fi;
        if :: gone -> undecided = at; goto next :: else fi;
        d_step {                                /* I2: of a job that lost the run, at most one COMMIT is sent */
            look_for_owner(n, me);
            two_commit = count && overdue[me];
            overdue[me] = count
        }
        assert(!two_commit);
        if                                      /* Writing 4: create COMMIT */
        :: d_step { create(at, me); stale = commit[at] != me }
        :: d_step { !one_was_late -> one_was_late = true; late = at; late_by = me };    /* no reply; read back: absent */
            if
            :: d_step { create(at, me); stale = commit[at] != me }      /* the same once more */
            :: undecided = at; goto next        /* or the save fails */
            fi
        fi;
        if :: stale -> goto stopped :: else fi; /* read back: another's is defeat */
#ifdef REPORTED_AT_COMMIT
        reported[at] = true;
#endif
        committed = at; deleting++;
        fence(false);                           /* Writing 5: after it, save() returns the name */
        if :: stale -> deleting--; goto stopped :: else fi;
        if :: gone -> deleting--; goto next :: else fi;
        d_step { choose_doomed(n, doomed); count = 0 }
        do
        :: doomed == 0 -> break
        :: else ->
            d_step {                            /* COMMIT first, */
                for (f : 1 .. SIZE) { if :: doomed & (1 << f) -> i = f :: else fi }
                doomed = doomed & ~(1 << i); touched = touched | (1 << attempt(i))
            }
            if
            :: commit[i] = NONE
#ifdef LATE_DELETE
            :: atomic { !one_was_late -> one_was_late = true; late = i; commit[i] = NONE }      /* no reply; sent again */
            :: atomic { !one_was_late -> one_was_late = true; late = i; doomed = 0; i = NONE; goto retained }
#endif
            fi;
            d_step { data[i] = NONE; i = NONE } /* then its files */
        od;
        do                                      /* frozen shards of attempts that it took the last commit from */
        :: d_step { next_frozen_of(touched); i = g } ->
            if :: i == NONE -> break :: else fi;
            d_step { frozen[i] = NONE; i = NONE }
        od;
retained:
        touched = 0;
        deleting--;
next:   at++
    od;
stopped:
    skip;
    d_step { stale = false; gone = false; at = 0; n = 0; begun_at = 0; high = 0; saves = 0; ignored = 0; undecided = 0 }
}

/* The storage delivers a request after its sender gave up waiting for the reply. */
active proctype Network() {
    do
    :: d_step { late != NONE ->
            if :: late_by == NONE -> commit[late] = NONE :: else -> create(late, late_by) fi;
            late = NONE; late_by = NONE
        }
    od
}

/* A run that began long ago: attempt 1 is dead and left two commits. */
inline begin_long_ago() {
    run_json = DEAD; document[1] = DEAD; frozen[1] = 1 << DEAD;
    for (f : 1 .. 2) { commit[f] = DEAD; data[f] = DEAD; reported[f] = true }
}

#ifdef BEGUN_ANEW
/* A person removes or moves the folder of the run; what it held is promised no more. */
inline begin_anew() {
    run_json = NONE;
    for (a : 1 .. ATTEMPTS) { document[a] = NONE; parent[a] = NONE; frozen[a] = NONE }
    for (f : 1 .. SIZE) { commit[f] = NONE; data[f] = NONE; reported[f] = false }
}
#endif

init {
#if defined(BEGUN_ANEW)
    /* The old job lives on, and the new one starts after the folder went: with the same names or lower ones. */
    if
    :: run Job(1, 3, 2)
    :: atomic { begin_long_ago(); run Job(1, 1, 2) }
    :: run Job(1, 1, 2)
    fi;
#ifdef REMOVED_WHILE_DELETING
    d_step { begin_anew(); count = 0 }
#else
    d_step { deleting == 0 -> begin_anew(); count = 0 }
#endif
    run Job(2, 1, 2)
#elif defined(AWAY)
    /* A start while the disk is away; it comes back at any moment. */
#ifdef ONLY_ONE_ATTEMPT
    run Job(1, 1, 2);
#else
    atomic { begin_long_ago(); run Job(1, 1, 2) };
    document[2] != NONE;                        /* its document names a parent */
#endif
    atomic { away = true; starts_while_away = run Job(2, 1, 0) }
    away = false
#else
    /* Starts at any time, of which each may find the one before alive or dead. */
#ifdef FORGETS_VOIDS
    /* The third start sees two commits above a folder of the first one, which may be alive. */
    atomic { run Job(1, 1, 1); run Job(2, 1, 2) };
    real(folder(2, 1)) && real(folder(2, 2));
    run Job(3, 1, 0)
#elif STARTS == 3
    atomic { begin_long_ago(); run Job(1, 1, 1); run Job(2, 1, 1); run Job(3, 1, 0) }
#else
    atomic { if :: begin_long_ago() :: skip fi; run Job(1, 1, 2); run Job(2, 1, 2) }
#endif
#endif
}
