/* claims.pml: several slots in one call (segments.md 2 and 3).
 *
 * Three clients each claim two of two slots: one in ascending order (an update), one as a writer whose row range wraps
 * round the end of the ring, one the first slot only. Who meets a living owner lets go of everything, waits for that owner
 * and starts again; claims of the dead are taken over. All claims come before the first mark.
 *
 * Checked: a slot that is marked belongs to its marker; nobody hangs, whoever dies; both slots can be claimed afterwards.
 *
 * Mutants, each must fail:
 *   KEEP_CLAIMS    wait for a living owner with claims in hand      deadlock
 *   FORGET_CLAIM   let go of all but the first claim                deadlock
 *   WAIT_ANY       wait until the slot is free, dead owner or not   deadlock
 */
#define CLIENTS 3
#include "death.pml"
#ifndef ROUNDS
#define ROUNDS 2
#endif
#define SLOTS 2
#define SLOT(k) ((first + (k)) % SLOTS)

byte owner[SLOTS];
byte at_work[SLOTS];  /* ghost: who has marked the slot */

inline let_go_of_all() {
	do
#ifdef FORGET_CLAIM
	:: atomic { k > 1 -> k--; owner[SLOT(k)] = 0 }
#else
	:: atomic { k > 0 -> k--; owner[SLOT(k)] = 0 }
#endif
	:: atomic { else -> k = 0; break }
	od
}

inline claim_all() {
	do
	:: k == n -> k = 0; break
	:: k < n ->
		p = SLOT(k);
		if
		:: atomic { owner[p] == 0 -> owner[p] = id; k++ }
		:: atomic { owner[p] == id -> k++ }
		:: atomic { owner[p] != 0 && owner[p] != id -> o = owner[p] };
			if
			:: atomic { dead[o] && owner[p] == o -> at_work[p] = 0; owner[p] = id; k++ }
			:: else ->
#ifndef KEEP_CLAIMS
				let_go_of_all();
#endif
#ifdef WAIT_ANY
				(owner[p] == 0)
#else
				(owner[p] != o || dead[o])
#endif
			fi;
			o = 0
		fi
	od
}

proctype Client(byte id, first, n) {
	byte k, o, p, rounds;
	{
		do
		:: rounds < ROUNDS ->
			claim_all();
			do
			:: atomic { k < n -> assert(owner[SLOT(k)] == id && at_work[SLOT(k)] == 0); at_work[SLOT(k)] = id; k++ }
			:: atomic { else -> k = 0; break }
			od;
			do
			:: atomic { k < n -> assert(owner[SLOT(k)] == id && at_work[SLOT(k)] == id); at_work[SLOT(k)] = 0; k++ }
			:: atomic { else -> k = 0; break }
			od;
			do
			:: atomic { k < n -> owner[SLOT(k)] = 0; k++ }
			:: atomic { else -> k = 0; break }
			od;
			rounds++
		:: else -> break
		od
	} unless { dead[id] };
	atomic { k = 0; o = 0; p = 0; rounds = 0; gone[id] = true }
}

init {
	atomic {
		run Client(1, 0, 2);
		run Client(2, 1, 2);
		run Client(3, 0, 1)
	}
	kill_until_all_ended();
	assert(owner[0] == 0 || dead[owner[0]]);
	assert(owner[1] == 0 || dead[owner[1]])
}
