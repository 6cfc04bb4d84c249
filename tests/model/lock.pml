/* lock.pml: the owner-token lock (segments.md 2).
 *
 * One word: the owner's token and a waiters bit. Lock: CAS 0 -> token; else set the bit and sleep while the word is
 * unchanged; after a time-out, if the owner is provably dead, CAS its word -> mine and repair. Unlock: exchange 0, wake one
 * if the bit was set. Whoever has slept takes the lock with the bit set, because others may still sleep; so does whoever
 * takes it over. With -DDEADLINE client 3 may give up when its sleep ends by time; who was woken looks at the word again first.
 * (Sister threads of one token are like any two clients that die together: two kills.)
 *
 * A time-out without a dead owner is a step that is taken only when nothing else in the system can move. It must then be
 * excused, by the death of somebody who owed a wake-up: between exchange and wake, or woken and not yet owner.
 *
 * Checked: one at a time inside; what the lock guards agrees with itself, after the repair where the owner died; no sleeper
 * needs its time-out without excuse; nobody sleeps for ever.
 *
 * Mutants, each must fail:
 *   NO_PROOF    take over after a time-out, dead or not      two inside
 *   NO_REPAIR   the taker goes on as if nothing was          what the lock guards disagrees
 *   LOSE_BIT    who has slept takes the lock without bit     a sleeper without excuse
 *   TAKE_BARE   a take-over drops the bit                    a sleeper without excuse
 *   NO_COMPARE  sleep without comparing the word             a sleeper without excuse
 *   NO_WAKE     unlock does not look at the bit              a sleeper without excuse
 *   NO_TIMEOUT  sleep until woken                            a sleeper for ever
 *   GIVE_UP     who was woken gives up without a look        a sleeper without excuse
 */
#define CLIENTS 3
#define TIME_OUTS
#define ON_DEATH(victim) excuses = excuses + owes[victim]; inside = inside - holds[victim]; asleep[victim] = false
#include "death.pml"
#ifndef ROUNDS
#define ROUNDS 2
#endif
#define WAITERS 8
#define TOKEN(w) ((w) & 7)

byte word;                /* token | WAITERS */
byte left, right;         /* what the lock guards: equal outside */
bool asleep[CLIENTS + 1];
byte inside;              /* ghost: living clients between lock and unlock */
byte excuses;             /* ghost: deaths that may have swallowed a wake-up */
bool owes[CLIENTS + 1];   /* ghost: somebody sleeps, and this client's next step towards the lock is what wakes it */
bool holds[CLIENTS + 1];

inline enter() {
	owes[id] = false;
	holds[id] = true;
	inside++;
	assert(inside == 1)
}

/* A spurious return is a time-out that finds a living owner: it only looks again. */
inline sleep_and_look() {
	if
	:: atomic { !asleep[id] -> o = 0 }
#ifdef GIVE_UP
	:: atomic { !asleep[id] && id == 3 -> o = 0; give_up = true; owes[id] = false }
#endif
#ifdef DEADLINE
	:: atomic { asleep[id] && id == 3 -> asleep[id] = false; o = 0; give_up = true }
#endif
#ifdef NO_PROOF
	:: atomic { asleep[id] = false };
#endif
#ifndef NO_TIMEOUT
	/* The owner to judge is today's, not the one that was there when the sleep began. */
	:: atomic { asleep[id] && dead[TOKEN(word)] -> asleep[id] = false; o = word }
	:: atomic { timeout -> assert(excuses > 0); asleep[id] = false; o = 0 }
#endif
	fi
}

inline lock() {
	slept = false;
	do
	:: atomic {
		word == 0 ->
#ifdef LOSE_BIT
		word = id;
#else
		word = id | (slept * WAITERS);
#endif
		enter();
		assert(left == right);
		break
		}
	:: atomic { word != 0 -> o = word | WAITERS };
		/* CAS: owner -> owner and waiters */
		if
		:: atomic { TOKEN(word) == TOKEN(o) -> word = o }
		:: atomic { else -> o = 0 }
		fi;
		if
		:: o != 0 ->
			if
#ifdef NO_COMPARE
			:: atomic { asleep[id] = true; slept = true; owes[id] = false }
#else
			:: atomic { word == o -> asleep[id] = true; slept = true; owes[id] = false }
			:: atomic { else -> o = 0 }
#endif
			fi
		:: else
		fi;
		if
		:: o != 0 -> sleep_and_look()
		:: else
		fi;
		if
		:: give_up -> break
		:: else
		fi;
		if
		:: atomic {
			o != 0 && word == o ->
#ifdef TAKE_BARE
			word = id;
#else
			word = id | WAITERS;
#endif
			o = 0;
			enter()
			};
#ifndef NO_REPAIR
			left = right;
#endif
			assert(left == right);
			break
		:: atomic { else -> o = 0 }
		fi
	od
}

inline wake_one() {
	atomic {
		if
		:: asleep[1] -> asleep[1] = false; owes[1] = true
		:: asleep[2] -> asleep[2] = false; owes[2] = true
		:: asleep[3] -> asleep[3] = false; owes[3] = true
		:: else
		fi;
		owes[id] = false
	}
}

inline unlock() {
	atomic { o = word; word = 0; holds[id] = false; inside--; owes[id] = (o > WAITERS) };
#ifndef NO_WAKE
	if
	:: o > WAITERS -> wake_one()
	:: else
	fi;
#endif
	atomic { o = 0; owes[id] = false }
}

proctype Client(byte id) {
	byte o, rounds;
	bool slept, give_up;
	{
		do
		:: rounds < ROUNDS ->
			lock();
			if
			:: !give_up ->
				left++;
				right++;
				unlock()
			:: else
			fi;
			atomic { give_up = false; rounds++ }
		:: else -> break
		od
	} unless { dead[id] };
	atomic { o = 0; rounds = 0; slept = false; give_up = false; asleep[id] = false; owes[id] = false; gone[id] = true }
}

init {
	atomic { run Client(1); run Client(2); run Client(3) }
	kill_until_all_ended();
	assert(word == 0 || dead[TOKEN(word)])
}
