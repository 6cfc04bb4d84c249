/* claim.pml: one slot and everybody who may touch it (segments.md 3, FORMAT.md 4).
 *
 * Two writers claim, mark, copy, publish; an updater changes the record in place; a reaper takes from the dead; a reader
 * looks, copies, looks again. Any of the first four may be killed between any two steps.
 * A word is generation:4 | revision:2 | void:1 | busy:1; revision 0 is kept for first writes. A record's content is the
 * generation and revision of its word, twice, so a reader knows what it must find.
 *
 * Checked: what a reader accepts is the record that its word names; nobody works on a slot beside a living owner;
 * generations only rise; a take-over voids only what the dead had marked, and knows whether that was a first write; nobody
 * hangs; the slot is usable afterwards.
 *
 * Mutants, each must fail:
 *   NO_PROOF       take over from an owner that may be alive     two at work in one slot
 *   NO_LOOK        no second look at the word                    torn read
 *   RELEASE_FIRST  owner = 0 before the word is published        two at work in one slot
 *   MARK_LATE      copy first, mark afterwards                   torn read
 *   NO_VOID        a take-over leaves the busy word as it is     two at work in one slot
 *   UNVOID         a take-over publishes what it found           torn read
 *   NO_REVISION    in place without a new revision               torn read
 *   REVISION_LATE  the new revision comes with the publication   an update taken for a first write
 *   WORD_FIRST     take-over judges the word before it owns it   a living writer's record is voided
 */
#define CLIENTS 4
#include "death.pml"
#ifndef WRITES
#define WRITES 1
#endif
#ifndef READS
#define READS 1
#endif

#define PLAIN(w) (((w) & 3) == 0)
#define BUSY(w) ((w) & 1)
#define GENERATION(w) ((w) >> 4)
#define CONTENT(w) ((w) >> 2)
#define NEXT_GENERATION(w) (((w) & 240) + 16)
#define REVISION(w) (((w) >> 2) & 3)
#define NEXT_REVISION(w) (((w) & 240) | (REVISION(w) == 3 -> 4 : ((w) & 12) + 4))

byte word = 16, owner, d0 = 4, d1 = 4;
byte at_work;         /* ghost: who stands between mark and publish */
byte highest = 1;     /* ghost: highest generation ever stored */
bool first_write;     /* ghost: what the one at work is doing */

inline mark(w) {
	assert(at_work == 0);
	at_work = id;
	word = (w) | 1
}

inline publish(w) {
	assert(at_work == id);
	at_work = 0;
	word = w
}

/* The half-written record of the dead is gone, and every handle to it is stale. */
inline reclaim() {
	if
#ifndef NO_VOID
	:: atomic {
		BUSY(word) ->
		assert(dead[at_work] && (REVISION(word) == 0) == first_write);
		at_work = 0;
#ifdef UNVOID
		word = word & 252
#else
		word = NEXT_GENERATION(word) | 2;
		highest = GENERATION(word)
#endif
		}
#endif
	:: else
	fi
}

/* CAS 0 -> me, or wait, holding nothing, until the owner lets go or is provably dead: CAS dead -> me. */
inline claim() {
	do
	:: atomic { owner == 0 -> owner = id; break }
	:: atomic { owner != 0 -> o = owner };
#ifndef NO_PROOF
		(owner != o || dead[o]);
#endif
#ifdef WORD_FIRST
		if
		:: dead[o] -> reclaim()
		:: else
		fi;
#endif
		if
#ifdef NO_PROOF
		:: atomic { owner == o -> owner = id; o = 0 }
#else
		:: atomic { dead[o] && owner == o -> owner = id; o = 0 }
#endif
			reclaim();
			break
		:: atomic { else -> o = 0 }
		fi
	od
}

proctype Writer(byte id, writes) {
	byte o, times;
	{
		do
		:: times < writes ->
			claim();
#ifdef MARK_LATE
			d0 = CONTENT(NEXT_GENERATION(word));
			d1 = CONTENT(NEXT_GENERATION(word));
#endif
			atomic {
				assert(GENERATION(NEXT_GENERATION(word)) > highest);
				highest = GENERATION(NEXT_GENERATION(word));
				mark(NEXT_GENERATION(word));
				first_write = true
			};
#ifndef MARK_LATE
			d0 = CONTENT(word);
			d1 = CONTENT(word);
#endif
#ifdef RELEASE_FIRST
			owner = 0;
			atomic { publish(word & 252); times++ }
#else
			atomic { publish(word & 252) };
			atomic { owner = 0; times++ }
#endif
		:: else -> break
		od
	} unless { dead[id] };
	atomic { o = 0; times = 0; gone[id] = true }
}

proctype Updater(byte id) {
	byte o, handle;
	{
		handle = word;
		claim();
		if
		:: atomic {
			PLAIN(handle) && PLAIN(word) && GENERATION(word) == GENERATION(handle) ->
			handle = NEXT_REVISION(word);  /* from here on: what the word will be */
#if defined(NO_REVISION) || defined(REVISION_LATE)
			mark(word);
#else
			mark(handle);
#endif
			first_write = false
			};
			d0 = CONTENT(handle);
			d1 = CONTENT(handle);
#ifdef NO_REVISION
			atomic { publish(word & 252) }
#else
			atomic { publish(handle) }
#endif
		:: else
		fi;
		owner = 0
	} unless { dead[id] };
	atomic { o = 0; handle = 0; gone[id] = true }
}

/* A waiter that looks for the dead, or the next tenant of their byte. */
proctype Reaper(byte id) {
	byte o;
	{
		o = owner;
		if
		:: dead[o] ->
			if
			:: atomic { owner == o -> owner = id };
				reclaim();
				owner = 0
			:: else
			fi
		:: else
		fi
	} unless { dead[id] };
	atomic { o = 0; gone[id] = true }
}

proctype Reader() {
	byte w, again, a, b, seen, times;
	do
	:: times < READS ->
		w = word;
		if
		:: PLAIN(w) ->
			a = d0;
			b = d1;
#ifdef NO_LOOK
			again = w;
#else
			again = word;
#endif
			atomic {
				if
				:: again == w ->
					assert(a == CONTENT(w) && b == CONTENT(w));
					assert(GENERATION(w) >= seen);
					seen = GENERATION(w)
				:: else
				fi;
				again = 0; a = 0; b = 0
			}
		:: else
		fi;
		atomic { w = 0; times++ }
	:: atomic { else -> times = 0; seen = 0; break }
	od
}

init {
	atomic {
		run Reader();
		run Writer(1, WRITES);
		run Writer(2, 1);
		run Updater(3);
#ifdef REAPER
		run Reaper(4)
#endif
	}
	kill_until_all_ended();
	/* Nothing may be in the way of the next caller. */
	assert(owner == 0 || dead[owner]);
	assert(!BUSY(word) || dead[at_work]);
	assert(!PLAIN(word) || (d0 == CONTENT(word) && d1 == CONTENT(word)))
}
