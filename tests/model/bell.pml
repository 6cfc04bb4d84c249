/* bell.pml: the doorbells (segments.md 7, FORMAT.md 7).
 *
 * A pair {event, waiting} in one word for those who sleep on the event half by futex, another for those on the semaphore.
 * Waiter: waiting + 1 and keep event, in one step; look again; sleep; waiting - 1 only while event is unchanged; start
 * again. Notifier: change, fence, and for each pair, if waiting is not 0: (event + 1, 0) in one step, then wake all on the
 * futex, or post the semaphore as often as waiting said. Items are taken one at a time; waiters 1 and 2 want WANTS each
 * and give up only when nothing more can come; notifiers 3 and 4 bring BRINGS each.
 *
 * A time-out is a step that is taken only when nothing else in the system can move. On the futex it must then be excused
 * by the death of a notifier. On the semaphore (-DSEMAPHORES=1 or 2 of the waiters) it need not be: a post that was meant
 * for one waiter can be taken by another that came later and finds nothing, and then nobody wakes the first: the cap is
 * what bounds this, as it bounds the death of a notifier.
 *
 * Checked: nobody sleeps for ever while there is something to take; futex: no sleeper needs its time-out without excuse;
 * what is left in the semaphore is bounded by the posts that were owed.
 *
 * Mutants, each must fail:
 *   NO_RECHECK    sleep without looking again               a sleeper without excuse
 *   LOOK_FIRST    the notifier looks before it changes      a sleeper without excuse
 *   LEAVE_ALWAYS  waiting - 1 whatever event says           a sleeper without excuse
 *   SAME_EVENT    the notifier does not move event          a sleeper without excuse
 *   TWO_STEPS     waiting + 1, then read event              a sleeper without excuse
 *   WAKE_ONE      wake one, take all off the count          a sleeper without excuse
 *   NO_CAP        sleep until woken                         a sleeper for ever
 *   ONE_PAIR      one count for futex and semaphore         posts for those who sleep on the futex, for ever more
 */
#define CLIENTS 4
#define TIME_OUTS
#ifndef SEMAPHORES
#define SEMAPHORES 0
#endif
#ifndef WANTS
#define WANTS 1
#endif
#ifndef BRINGS
#define BRINGS 1
#endif
#ifndef NOTIFIERS
#define NOTIFIERS 2
#endif
#define FUTEX 0
#define SEMAPHORE 1

byte available;
byte event[2], waiting[2];
byte posts;                /* in the semaphore */
bool asleep[3];            /* on the futex */
byte bringing = NOTIFIERS; /* ghost: notifiers that may still bring something */
byte excuses;              /* ghost: notifiers that died */
#define ON_DEATH(victim) \
	if :: victim > 2 -> excuses++; bringing-- :: else -> asleep[victim] = false fi
#include "death.pml"

#ifdef ONE_PAIR
#define PAIR(how) 0
#else
#define PAIR(how) (how)
#endif

inline sleep() {
	if
	:: how == FUTEX ->
		if
		:: atomic { event[PAIR(FUTEX)] == e -> asleep[id] = true }
		:: atomic { event[PAIR(FUTEX)] != e -> skip }
		fi;
		if
		:: !asleep[id]
#ifndef NO_CAP
		:: atomic { timeout -> assert(available == 0 || excuses > 0); asleep[id] = false }
#endif
		/* Not a step of the protocol: nothing will ever come. */
		:: atomic { bringing == 0 && available == 0 -> asleep[id] = false }
		fi
	:: how == SEMAPHORE ->
		if
		:: atomic { posts > 0 -> posts-- }
#ifndef NO_CAP
		:: timeout
#endif
		:: bringing == 0 && available == 0
		fi
	fi
}

proctype Waiter(byte id, how) {
	byte e, taken;
	bool over;
	{
		do
		:: taken == WANTS -> break
		:: atomic { taken < WANTS && available > 0 -> available--; taken++ }
		:: taken < WANTS && available == 0 ->
			if
			:: bringing == 0 -> break
			:: else
			fi;
#ifdef TWO_STEPS
			waiting[PAIR(how)]++;
			e = event[PAIR(how)];
#else
			atomic { waiting[PAIR(how)]++; e = event[PAIR(how)] };
#endif
#ifdef NO_RECHECK
			sleep();
#else
			if
			:: atomic { available > 0 -> available--; taken++ }
			:: else -> sleep()
			fi;
#endif
			atomic {
				if
#ifdef LEAVE_ALWAYS
				:: waiting[PAIR(how)] > 0 -> waiting[PAIR(how)]--
#else
				:: event[PAIR(how)] == e && waiting[PAIR(how)] > 0 -> waiting[PAIR(how)]--
#endif
				:: else
				fi;
				e = 0
			}
		od
	} unless { dead[id] };
	atomic { e = 0; taken = 0; gone[id] = true }
}

inline take_waiters(p) {
	atomic {
		if
		:: waiting[p] > 0 ->
			owed = waiting[p];
			waiting[p] = 0;
#ifndef SAME_EVENT
			event[p]++
#endif
		:: else -> owed = 0
		fi
	}
}

inline wake() {
	atomic {
#ifdef WAKE_ONE
		if
		:: asleep[1] -> asleep[1] = false
		:: asleep[2] -> asleep[2] = false
		:: else
		fi
#else
		asleep[1] = false;
		asleep[2] = false
#endif
	}
}

proctype Notifier(byte id) {
	byte owed, brought;
	{
		do
		:: brought == BRINGS -> break
		:: brought < BRINGS ->
#ifndef LOOK_FIRST
			available++;
#endif
			take_waiters(FUTEX);
			if
			:: owed > 0 -> wake()
			:: else
			fi;
#ifndef ONE_PAIR
			take_waiters(SEMAPHORE);
#endif
#if SEMAPHORES > 0
			do
			:: atomic { owed > 0 -> posts++; owed-- }
			:: else -> break
			od;
#endif
			atomic {
#ifdef LOOK_FIRST
				available++;
#endif
				owed = 0;
				brought++
			}
		od
	} unless { dead[id] };
	atomic {
		owed = 0;
		brought = 0;
		gone[id] = true;
		if
		:: !dead[id] -> bringing--
		:: else
		fi
	}
}

init {
	atomic {
		run Waiter(1, (SEMAPHORES > 1 -> SEMAPHORE : FUTEX));
		run Waiter(2, (SEMAPHORES > 0 -> SEMAPHORE : FUTEX));
		run Notifier(3);
#if NOTIFIERS > 1
		run Notifier(4)
#endif
	}
	kill_until_all_ended();
	assert(posts <= SEMAPHORES * (WANTS + KILLS))
}
