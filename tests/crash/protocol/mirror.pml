/* One run on two roots: each machine has a local one, and all have the mirror.
 * run/root_and_mirrors, docs/adr/0006. Machine 1 trains; its uploads lag. Somebody starts on machine 2 by mistake;
 * machine 1 starts again.
 * With CHAIN there is a nearer mirror, too, and what a machine's root lacks comes back to it (docs/adr/0006).
 *
 * Left out, since run.pml has it: failed saves, voids, frozen shards. A commit without its files does not occur. */

#define ATTEMPTS 3
#define PLACES   4
#define SIZE     12                             /* folders: ATTEMPTS * PLACES */
#define MIRROR   0                              /* the other roots are machines */
#ifdef CHAIN
#define NEAR     3
#define ROOTS    4
#define is_at_near(what, i) root[NEAR].what[i]
#else
#define ROOTS    3
#define is_at_near(what, i) false
#endif

#define NONE 0

#define folder(a, p)  (((a) - 1) * PLACES + (p))
#define attempt(f)    (((f) - 1) / PLACES + 1)
#define place(f)      (((f) - 1) % PLACES + 1)

typedef Root { bool document[ATTEMPTS + 1]; bool commit[SIZE + 1] }
Root root[ROOTS];
byte parent[ATTEMPTS + 1];                      /* attempts are numbered over all roots, and a document never changes */
byte begun_by[ATTEMPTS + 1];                    /* its token */

bool reported[SIZE + 1];                        /* save() returned this name, on machine 1 */
bool lost, two_roots_disagree;

/* Of a single step: not part of a state. */
hidden byte f, g, a, head, best, count, last;
hidden byte line[SIZE + 1];

#define has_document(r, a)  (root[r].document[a] || root[MIRROR].document[a] || is_at_near(document, a))
#define seen(r, f)          (root[r].commit[f] || root[MIRROR].commit[f] || is_at_near(commit, f))

/* The lineage of attempt n, by the documents of root r and of the mirror. */
inline walk(r, n) {
    for (f : 1 .. SIZE) { line[f] = false }
    a = n; last = PLACES;
    do
    :: a == 0 || !has_document(r, a) -> break
    :: else ->
        for (f : folder(a, 1) .. folder(a, last)) { line[f] = true }
        if
        :: parent[a] == NONE -> a = 0
        :: else -> last = place(parent[a]); a = attempt(parent[a])
        fi
    od
}

/* Sets `head` and `best`, as if the attempts in `ignored` had never been: from what the mirror and root r have. */
inline choose(r, ignored) {
    head = ATTEMPTS; best = NONE;
    do
    :: head == 0 -> break
    :: else ->
        if
        :: !has_document(r, head) || (ignored & (1 << head)) -> skip
        :: else ->
            count = 0;
            for (f : folder(head, 1) .. folder(head, PLACES)) { if :: seen(r, f) -> count++ :: else fi }
            if
            :: count == 0 && parent[head] != NONE &&
#ifdef EMPTY_ATTEMPT_COUNTS
               !seen(r, parent[head]) ->
#else
               true ->                          /* it committed nothing, so it has no say */
#endif
                skip
            :: else ->
                walk(r, head);
                for (f : 1 .. SIZE) { if :: line[f] && seen(r, f) -> best = f :: else fi }
                if :: best != NONE -> break :: else fi
            fi
        fi;
        head--
    od
}

/* I1, asked at any moment: a start on machine 1 finds what was reported there, or two later ones of its lineage. */
inline look_for_losses() {
    choose(1, 0);
    if :: best == NONE -> for (f : 1 .. SIZE) { line[f] = false } :: else -> walk(1, head) fi;
    for (f : 1 .. SIZE) {
        if
        :: reported[f] ->
            count = 0;
            for (g : f + 1 .. SIZE) { if :: line[g] && seen(1, g) -> count++ :: else fi };
            if :: !line[f] || (!seen(1, f) && count < 2) -> lost = true :: else fi
        :: else
        fi
    }
}

active proctype Invariants() {
    do
    :: d_step { !lost -> look_for_losses(); count = 0 }
    :: assert(!lost)
    od
}

/* The fence check at one root: a later attempt's document? Sets `stale`. */
inline fence(r) {
    d_step {
        stale = false;
        for (a : n + 1 .. ATTEMPTS) { if :: root[r].document[a] -> stale = true :: else fi }
    }
}

/* Retention at one root: removes all of its lineage but the two newest that are there. */
inline retain(r) {
    fence(r);
    if
    :: stale
    :: else ->
        d_step {
            walk(r, n); count = 0;
            for (g : 1 .. SIZE) {
                f = SIZE + 1 - g;
                if :: line[f] && root[r].commit[f] -> count++; if :: count > 2 -> root[r].commit[f] = false :: else fi
                :: else
                fi
            };
            count = 0
        }
    fi
}

#ifdef ROOM_WITHOUT_LOOK
#define may_make_room(f)    true
#else
#define may_make_room(f)    (root[MIRROR].commit[f] || is_at_near(commit, f))
#endif

/* The local root is in memory, and has no room: of its lineage the oldest goes that the mirror has, too. Sets `gone`. */
inline make_room(r) {
    d_step {
        walk(r, n); best = NONE; gone = NONE;
        for (f : 1 .. SIZE) { if :: line[f] && root[r].commit[f] -> best = f :: else fi };
        for (f : 1 .. SIZE) {
            if
            :: gone == NONE && f != best && line[f] && root[r].commit[f] && may_make_room(f) -> gone = f
            :: else
            fi
        }
    }
    fence(r);
    if :: !stale && gone != NONE -> root[r].commit[gone] = false :: else fi;
    d_step { gone = NONE }
}

proctype Job(byte me; byte machine; byte most_saves) {
    byte n, begun_at, at, saves, ignored, gone;
    bool stale;

begin:
    skip;
    d_step {                                    /* list both roots, choose from both */
        choose(machine, ignored); begun_at = best; n = 0;
        for (a : 1 .. ATTEMPTS) { if :: has_document(machine, a) -> n = a :: else fi };
        n++
    }
    if :: n > ATTEMPTS -> goto stopped :: else fi;
    d_step {                                    /* create the document at the mirror, which is the fence, */
        stale = root[MIRROR].document[n];
        if :: !stale -> root[MIRROR].document[n] = true; parent[n] = begun_at; begun_by[n] = me :: else fi;
        count = 0
    }
    if :: stale -> goto begin :: else fi;
#ifdef CHAIN
    root[NEAR].document[n] = true;              /* then at the nearer one, */
#endif
    d_step {                                    /* then at the local root */
        two_roots_disagree = (begun_by[n] != me);
        root[machine].document[n] = true
    }
    assert(!two_roots_disagree);
    d_step {                                    /* list both again: a later attempt, or another choice? */
        stale = false;
        for (a : n + 1 .. ATTEMPTS) { if :: has_document(machine, a) -> stale = true :: else fi };
        ignored = ignored | (1 << n);
        choose(machine, ignored);
        count = (best != begun_at) || (begun_at != NONE && !seen(machine, begun_at));
        ignored = ignored * count;              /* tells below whether to begin again */
        count = 0
    }
    if :: stale -> goto stopped :: ignored && !stale -> goto begin :: else fi;

#ifdef CHAIN
    if                                          /* what the local root lacks comes back to it */
    :: begun_at != NONE && !root[machine].commit[begun_at] ->
        fence(machine);
        if :: stale -> goto stopped :: else fi;
        if :: seen(machine, begun_at) -> root[machine].commit[begun_at] = true :: else fi
    :: true
    fi;
#endif
    if :: begun_at == NONE -> at = folder(n, 1) :: else -> at = folder(n, place(begun_at) + 1) fi;
    do
    :: saves == most_saves || attempt(at) != n -> break
    :: else ->
        saves++;
        fence(machine);                         /* a save asks its local root alone */
        if :: stale -> goto stopped :: else fi;
        if :: skip :: make_room(machine); if :: stale -> goto stopped :: else fi fi;
        root[machine].commit[at] = true;
        fence(machine);
        if :: stale -> goto stopped :: else fi;
        if :: machine == 1 -> reported[at] = true :: else fi;
        retain(machine);
        if :: stale -> goto stopped :: else fi;
        if
        :: skip                                 /* the mirror cannot be reached, or a newer commit takes this one's place */
        :: fence(MIRROR);                       /* an upload: fence, files, fence, COMMIT */
            if :: stale -> goto stopped :: else fi;
            fence(MIRROR);
            if :: stale -> goto stopped :: else fi;
            if :: root[machine].commit[at] -> root[MIRROR].commit[at] = true :: else fi;
            retain(MIRROR);
            if :: stale -> goto stopped :: else fi
        fi;
#ifdef CHAIN
        if
        :: skip                                 /* the same at the nearer one, whatever became of the other upload */
        :: fence(NEAR);
            if :: stale -> goto stopped :: else fi;
            fence(NEAR);
            if :: stale -> goto stopped :: else fi;
            if :: root[machine].commit[at] -> root[NEAR].commit[at] = true :: else fi;
            retain(NEAR);
            if :: stale -> goto stopped :: else fi
        fi;
#endif
        at++
    od;
stopped:
    skip;
    d_step { n = 0; begun_at = 0; at = 0; saves = 0; ignored = 0; stale = false }
}

#ifndef SAVES_ELSEWHERE
#define SAVES_ELSEWHERE 0
#endif

init { atomic { run Job(1, 1, 2); run Job(2, 2, SAVES_ELSEWHERE); run Job(3, 1, 1) } }
