/* publish.pml: Parameters, the way back from learner to collectors (DESIGN.md 3): three slots of the slot protocol.
 *
 * A publisher holds the lease (free, or a dead owner's), looks for the newest whole version, and writes one more than that
 * into another slot: one that holds no whole version if there is one, else the oldest. Its successors do the same, whatever
 * it left. A reader scans the slots, takes the largest whole version, copies it, looks again, and starts anew if the word
 * moved. Publishers may be killed between any two steps.
 *
 * The choice matters. With the oldest, a slot that a scan met busy was busy for a version that is newer than what the other
 * slots held until then, so a copy of one of those fails its second look. With "any slot but the newest", a publisher that
 * alternates between two slots lets a scan meet both of them busy and return the third, older than what was whole before
 * the reader began.
 *
 * Actors by flag: PUBLISHERS (1 to 3, PUBLISHES versions each; with -DIN_TURN each waits for the one before it to end), READER.
 * With -DFRESH no version is there at first.
 *
 * Checked: what a reader returns is whole, and no older than the newest version that was whole when it began; a version
 * names one tree; while a slot is written, the newest whole version stands in another; a dead publisher's place is free.
 *
 * Mutants, each must fail:
 *   NO_LOOK     no second look at the word                             torn read
 *   ANY         write any slot but the newest                          a reader returns what was old when it began
 *   RING        write the slots in turn, whole or not                  the newest whole version is overwritten
 *   COUNT_BUSY  a version under a busy or void word counts as whole    the newest whole version is overwritten
 *   NO_PROOF    the lease of a slow publisher is taken                 a version for two trees
 */
#define CLIENTS 3
#include "death.pml"
#ifndef PUBLISHERS
#define PUBLISHERS 3
#endif
#ifndef PUBLISHES
#define PUBLISHES 1
#endif
#define SLOTS 3
#define PLAIN(w) (((w) & 3) == 0)
#define BUSY(w) ((w) & 1)
#define WHOLE(w) (PLAIN(w) && (w) > 0)
#define NEXT_GENERATION(w) (((w) & 252) + 4)  /* generation:6 | void:1 | busy:1 */
#ifdef COUNT_BUSY
#define COUNTS(w) ((w) > 0)
#else
#define COUNTS(w) WHOLE(w)
#endif

byte word[SLOTS], owner[SLOTS], version[SLOTS], d0[SLOTS], d1[SLOTS];
byte lease, turn;
byte newest;           /* ghost: highest version that was ever whole */
byte newest_at;        /* ghost: its slot */
bool published[32];    /* ghost: by version */

inline take_lease() {
#ifdef IN_TURN
	(id == 1 || dead[id - 1] || gone[id - 1]);
#endif
	do
	:: atomic { lease == 0 -> lease = id; break }
	:: atomic { lease != 0 -> o = lease };
#ifndef NO_PROOF
		(lease != o || dead[o]);
#endif
		if
#ifdef NO_PROOF
		:: atomic { lease == o -> lease = id; o = 0; break }
#else
		:: atomic { dead[o] && lease == o -> lease = id; o = 0; break }
#endif
		:: atomic { else -> o = 0 }
		fi
	od
}

/* The publisher alone changes what it looks at here. v: the version to write, s: where. */
inline choose() {
	d_step {
		v = 0;
		s = 0;
		i = 0;
		do
		:: i < SLOTS ->
			if
			:: COUNTS(word[i]) && version[i] > v -> v = version[i]; s = i
			:: else
			fi;
			i++
		:: else -> break
		od;
		o = s;  /* the newest */
		s = (o + 1) % SLOTS;
		i = (o + 2) % SLOTS;
		if
		:: COUNTS(word[s]) && (!COUNTS(word[i]) || version[i] < version[s]) -> s = i
		:: else
		fi;
		v++
	};
#ifdef ANY
	if
	:: s = (o + 1) % SLOTS
	:: s = (o + 2) % SLOTS
	fi;
#endif
#ifdef RING
	s = turn % SLOTS;
	turn++;
#endif
	atomic { o = 0; i = 0 }
}

inline claim() {
	if
	:: atomic { owner[s] == 0 -> owner[s] = id }
	:: atomic { owner[s] != 0 -> o = owner[s] };
		(owner[s] != o || dead[o]);
		atomic { owner[s] = id; o = 0 };
		if
		:: BUSY(word[s]) -> word[s] = NEXT_GENERATION(word[s]) | 2
		:: else
		fi
	fi
}

proctype Publisher(byte id) {
	byte o, s, v, i, times;
	{
		take_lease();
		do
		:: times < PUBLISHES ->
			choose();
			claim();
			atomic {
				assert(newest == 0 || newest_at != s);
				word[s] = NEXT_GENERATION(word[s]) | 1
			};
			atomic { d0[s] = v; version[s] = v };
			d1[s] = v;
			atomic {
				assert(!published[v]);
				published[v] = true;
				newest = v;
				newest_at = s;
				word[s] = word[s] & 252
			};
			atomic { owner[s] = 0; s = 0; v = 0; times++ }
		:: else -> break
		od;
		lease = 0
	} unless { dead[id] };
	atomic { o = 0; s = 0; v = 0; i = 0; times = 0; gone[id] = true }
}

proctype Reader() {
	byte s, first, best, at, w, v, a, b, began, k;
	select(first : 0 .. SLOTS - 1);
	began = newest;
	do
	:: true ->
		best = 0;
		do
		:: k < SLOTS ->
			/* Word, version, word again: as good as one look (claim.pml). */
			d_step {
				s = (first + k) % SLOTS;
				if
				:: WHOLE(word[s]) && version[s] > best -> best = version[s]; at = s
				:: else
				fi;
				s = 0;
				k++
			}
		:: else -> k = 0; break
		od;
		if
		:: best == 0 && began == 0 -> break
		:: best == 0 && began > 0
		:: best > 0 ->
			w = word[at];
			atomic { a = d0[at]; v = version[at] };
			b = d1[at];
			if
#ifdef NO_LOOK
			:: WHOLE(w) ->
#else
			:: WHOLE(w) && word[at] == w ->
#endif
				assert(a == v && b == v && v >= began);
				break
			:: else
			fi
		fi
	od;
	atomic { s = 0; first = 0; best = 0; at = 0; w = 0; v = 0; a = 0; b = 0; began = 0; k = 0 }
}

init {
	byte s;
	atomic {
#ifndef FRESH
		word[0] = 4; version[0] = 1; d0[0] = 1; d1[0] = 1;
		newest = 1; published[1] = true; turn = 1;
#endif
#ifdef READER
		run Reader();
#endif
		run Publisher(1);
#if PUBLISHERS > 1
		run Publisher(2);
#endif
#if PUBLISHERS > 2
		run Publisher(3)
#endif
	}
	kill_until_all_ended();
	assert(lease == 0 || dead[lease]);
	assert(newest == 0 || (WHOLE(word[newest_at]) && version[newest_at] == newest));
	do
	:: s < SLOTS -> assert(owner[s] == 0 || dead[owner[s]]); s++
	:: else -> break
	od
}
