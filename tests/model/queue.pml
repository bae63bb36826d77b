/*
 * One job from its claim to its sink, with everything that may go wrong between: claim, lease, publish, complete, forward,
 * cancel and supersede as shared/queue/lua/ and logger/ have them, each call one step, as Redis runs it. Workers die and are paused
 * beyond their lease, replies are lost, the logger dies between recording and acknowledging. Checked by run.sh with spin over
 * all interleavings; each guard can be left out by a macro, and then the check must fail.
 *
 * Promised: no write of a stale attempt is accepted; one result at most; one end exactly; nothing published after an end that
 * is not done; every entry of the stream recorded once; nobody waits for ever.
 */
#define WORKERS  2
#define ATTEMPTS 3 /* Claims, until a lost one ends the job. */
#ifndef FAULTS
#define FAULTS   4 /* In all: deaths of workers and of the logger, lost replies, leases that run out under a living worker. */
#endif
#define ENTRIES  4 /* Room in the stream: more than a right queue can fill. */

mtype = { QUEUED, RUNNING, DONE, DEAD, CANCELLED, SKIPPED, OK, STALE, DUPLICATE };

/* The queue, in Redis. */
mtype state = QUEUED;
byte token;            /* What fences; 0: none holds. */
byte claims;           /* Counts up: a token is the number of its claim. */
bool published;        /* The task has its result. */
byte request[WORKERS]; /* The token that the request id of a worker got; 0: none yet. */
byte entries;          /* Of the stream: results and ends. */
byte results, ends;

/* The world. */
bool lives[ATTEMPTS + 1]; /* Whoever holds this token. */
byte faults = FAULTS;
byte recorded[ENTRIES]; /* How often the sink has each entry. */

#define ended (state != QUEUED && state != RUNNING)
/* A reclaimed job waits, and its old token stays good until another claim. An end is guarded twice: it takes the token, and
 * an ended job is nobody's; either is enough. */
#ifdef HOLDS_ENDED
#define holds(t) (t == token && token != 0)
#else
#define holds(t) (t == token && token != 0 && !ended)
#endif

inline append()
{
    assert(entries < ENTRIES);
    entries++
}

inline end_as(what)
{
    assert(!ended);
    state = what;
#ifndef END_KEEPS_TOKEN
    token = 0;
#endif
    ends++;
    append()
}

inline claim(me, got)
{
    d_step {
        if
        :: request[me] != 0 && request[me] == token && state == RUNNING -> got = token /* Asked before. */
        :: else ->
            if
            :: state == QUEUED && claims < ATTEMPTS ->
                claims++;
                token = claims;
                request[me] = token;
                lives[token] = true;
                state = RUNNING;
                got = token
            :: else -> got = 0
            fi
        fi
    }
}

inline publish(mine, answer)
{
    d_step {
        if
#ifdef NO_FENCE
        :: !ended ->
#else
        :: holds(mine) ->
#endif
            assert(mine == claims); /* Nobody claimed it since. */
            state = RUNNING;
            if
#ifndef NO_SET_IF_ABSENT
            :: published -> answer = DUPLICATE
#endif
            :: else ->
                published = true;
                results++;
                append();
                answer = OK
            fi
        :: else -> answer = STALE
        fi
    }
}

inline complete(mine, answer)
{
    d_step {
        if
        :: holds(mine) ->
            assert(published);
            end_as(DONE);
            answer = OK
        :: else -> answer = STALE /* Or it completed before: a repetition learns so, and goes on alike. */
        fi
    }
}

proctype worker(byte me)
{
    byte mine = 0;
    mtype answer = STALE;

again:
    mine = 0;
    do
    :: ended -> goto over
    :: state == QUEUED || (request[me] != 0 && request[me] == token && state == RUNNING) ->
        claim(me, mine);
        if
        :: d_step { faults > 0 -> faults-- } -> mine = 0 /* The reply is lost: the same request again. */
        :: mine != 0 -> request[me] = 0; break /* Heard: the next request has another id. */
        :: mine == 0 -> skip
        fi
    od;
    do
    :: publish(mine, answer);
        if
        :: d_step { faults > 0 -> faults-- }
        :: break
        fi
    :: d_step { faults > 0 -> faults-- } -> lives[mine] = false; goto again /* In the middle of its work. */
    od;
    if
    :: answer == STALE -> lives[mine] = false; goto again /* It is told so, and drops the job. */
    :: else
    fi;
    do
    :: complete(mine, answer);
        if
        :: d_step { faults > 0 -> faults-- }
        :: break
        fi
    :: d_step { faults > 0 -> faults-- } -> lives[mine] = false; goto again
    od;
    lives[mine] = false;
    goto again;
over:
    skip
}

/* What heartbeats and claims of others do: a look at a lease that nobody kept alive. Clocks decide only when to look, so
 * it may also strike a worker that lives. */
proctype looks()
{
    do
    :: ended -> break
#ifndef NO_RECLAIM
    :: d_step {
        state == RUNNING && (!lives[token] || faults > 0) ->
        if
        :: lives[token] -> faults--
        :: else
        fi;
        if
        :: claims == ATTEMPTS && !lives[token] -> end_as(DEAD)
        :: claims < ATTEMPTS -> state = QUEUED
        :: else /* The last attempt lives: it is left. */
        fi
    }
    /* Reclaimed while its last attempt was under way, which then died: used up as well. */
    :: d_step { state == QUEUED && claims == ATTEMPTS && !lives[token] -> end_as(DEAD) }
#endif
    od
}

/* Somebody cancels the job, at any moment; or a newer checkpoint of its flow skips it while it waits; or nobody does. */
proctype others()
{
    if
    :: d_step {
        !ended ->
        end_as(CANCELLED)
    }
    :: d_step {
        state == QUEUED ->
        end_as(SKIPPED)
    }
    :: skip
    fi
}

/*
 * Delivers in order what is not acknowledged, records it, acknowledges. When it dies between the two, the entry comes again.
 * It never touches the job, so that it may as well begin when the job has ended: fewer interleavings, the same outcomes.
 */
proctype logger()
{
    byte at = 0; /* Entries before it are acknowledged. */

    ended;
    do
    :: at < entries ->
#ifdef ACK_FIRST
        if
        :: d_step { faults > 0 -> faults-- } -> at++; goto next
        :: skip
        fi;
#endif
        d_step {
            if
#ifndef NO_SINK_DEDUP
            :: recorded[at] > 0 -> skip /* Known by its id. */
#endif
            :: else -> recorded[at]++
            fi
        };
        if
        :: d_step { faults > 0 -> faults-- }
        :: at++
        fi;
next:
        skip
    :: ended && at == entries -> break
    od
}

init {
    byte i;

    atomic {
        for (i : 0 .. WORKERS - 1) {
            run worker(i)
        }
        run looks();
        run others();
        run logger()
    }
    _nr_pr == 1; /* All are through: nobody waits for ever. */
    assert(ended && ends == 1 && results <= 1);
    assert(state != DONE || results == 1);
    assert(entries == results + ends);
    for (i : 0 .. entries - 1) {
        assert(recorded[i] == 1)
    }
}
