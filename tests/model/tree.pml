/* tree.pml: the priority tree under the control lock (segments.md 5), two slots and their sum.
 *
 * A reserve claims, marks the word, sets the leaf and the sum in one critical section, with `dirty` around it; so does an
 * update of a priority, which compares the word's generation there. Whoever takes the lock over from a dead owner that left
 * `dirty` set rebuilds the sum from the leaves, void slots at 0. Changes in place take no lock: who finds one half done by a
 * dead client voids the slot, and `stale` asks the next holder of the lock to take the mass of void slots away; it is set
 * before the word and after it, since a holder may look in between.
 *
 * Clients: 1 writes WRITES records round the ring, 2 updates the priority of a record it has a handle of, 3 changes a
 * record in place, 4 draws DRAWS times. Any of them may be killed at any step. (Windows, raw priorities, minima and more
 * levels add nothing here: a level is recomputed from the one below it.)
 *
 * Checked: who holds the lock and has repaired finds the sum of the leaves; a record that is drawn has its own priority, and
 * a void slot with mass has somebody who will take it; in the end, after a last look, no void slot has mass and every record
 * has its own.
 *
 * Mutants, each must fail:
 *   NO_DIRTY    nothing says that leaves and sum disagree             a sum of other leaves
 *   DIRTY_LATE  `dirty` is set after the first leaf                   a sum of other leaves
 *   NO_REBUILD  the taker clears `dirty` and goes on                  a sum of other leaves
 *   NO_STALE    who voids tells nobody                                a void slot with mass
 *   STALE_ONCE  `stale` is set before the word only                   a void slot with mass
 *   FORGET      the taker of a lock does not set `stale` again        a void slot with mass
 *   LEAF_FIRST  a reserve sets the leaf before it marks the word      a record with another's priority
 *   NO_COMPARE  a priority is set whatever record is there            a record with another's priority
 *   EARLY_LOOK  a priority's generation is compared before the lock   a record with another's priority
 */
#define CLIENTS 4
#include "death.pml"
#ifndef WRITES
#define WRITES 2
#endif
#ifndef DRAWS
#define DRAWS 1
#endif
#define SLOTS 2
#define BUSY(w) ((w) & 1)
#define VOID(w) ((w) & 2)
#define GENERATION(w) ((w) >> 2)
#define WHOLE(w) (((w) & 3) == 0)
#define NEXT(w) ((GENERATION(w) + 1) << 2)

byte word[SLOTS] = 4;   /* generation:6 | void:1 | busy:1 */
byte owner[SLOTS];
byte leaf[SLOTS] = 1;
byte sum = 2;
byte lock;
bool dirty, stale;
byte right[SLOTS] = 1;  /* ghost: the priority of the record that the word names */

inline set_dirty() {
#ifndef NO_DIRTY
	dirty = true
#else
	skip
#endif
}

inline repair() {
#ifndef FORGET
	stale = true;  /* the dead one may have unset it and not gone on */
#endif
	if
	:: dirty ->
#ifndef NO_REBUILD
		s = 0;
		do
		:: s < SLOTS ->
			atomic {
				if
				:: VOID(word[s]) -> leaf[s] = 0
				:: else
				fi;
				s++
			}
		:: else -> break
		od;
		sum = leaf[0] + leaf[1];
#endif
		dirty = false
	:: else
	fi
}

inline take_lock() {
	if
	:: atomic { lock == 0 -> lock = id }
	:: atomic { lock != 0 && dead[lock] -> lock = id };
		repair()
	fi;
	assert(sum == leaf[0] + leaf[1])
}

/* REQUIRES: the lock. The mass of void slots goes. */
inline settle() {
	if
	:: atomic { stale -> stale = false; s = 0 };
		do
		:: s < SLOTS ->
			if
			:: atomic { VOID(word[s]) && leaf[s] > 0 };
				set_dirty();
				leaf[s] = 0;
				sum = leaf[0] + leaf[1];
				dirty = false
			:: else
			fi;
			s++
		:: else -> break
		od
	:: else
	fi
}

/* REQUIRES: slot p was taken from a dead owner. */
inline clear_up() {
#ifndef NO_STALE
	stale = true;
#endif
	if
	:: BUSY(word[p]) ->
		word[p] = NEXT(word[p]) | 2;
#if !defined(NO_STALE) && !defined(STALE_ONCE)
		stale = true
#endif
	:: else
	fi
}

/* Claims slot p, or leaves `mine` false when a living client has it. */
inline claim() {
	if
	:: atomic { owner[p] == 0 -> owner[p] = id; mine = true }
	:: atomic { owner[p] != 0 && dead[owner[p]] -> owner[p] = id; mine = true };
		clear_up()
	:: atomic { owner[p] != 0 && !dead[owner[p]] -> mine = false }
	fi
}

proctype Writer(byte id) {
	byte n, p, s;
	bool mine;
	{
		do
		:: n < WRITES ->
			p = n % SLOTS;
			take_lock();
			claim();
			if
			:: mine ->
#ifndef DIRTY_LATE
				set_dirty();
#endif
#ifdef LEAF_FIRST
				leaf[p] = 1;
#endif
				atomic { word[p] = NEXT(word[p]) | 1; right[p] = 1 };
#ifndef LEAF_FIRST
				leaf[p] = 1;
#endif
#ifdef DIRTY_LATE
				set_dirty();
#endif
				sum = leaf[0] + leaf[1];
				dirty = false;
				lock = 0;
				word[p] = word[p] & ~1;
				owner[p] = 0;
				n++
			:: else ->
				lock = 0;
				(owner[p] == 0 || dead[owner[p]])
			fi
		:: else -> break
		od;
		gone[id] = true
	} unless { dead[id] }
}

proctype Updater(byte id) {
	byte s, handle;
	bool current;
	{
		/* A handle of whatever record is there, or was. */
		atomic { handle = GENERATION(word[0]) };
#ifdef EARLY_LOOK
		current = (GENERATION(word[0]) == handle && !VOID(word[0]));
#endif
		take_lock();
#ifndef EARLY_LOOK
		current = (GENERATION(word[0]) == handle && !VOID(word[0]));
#endif
#ifdef NO_COMPARE
		current = !VOID(word[0]);
#endif
		if
		:: current ->
			set_dirty();
			/* The ghost knows which record was meant. */
			atomic {
				leaf[0] = 2;
				if
				:: GENERATION(word[0]) == handle -> right[0] = 2
				:: else
				fi
			};
			sum = leaf[0] + leaf[1];
			dirty = false
		:: else
		fi;
		lock = 0;
		gone[id] = true
	} unless { dead[id] }
}

proctype InPlace(byte id) {
	byte p;
	bool mine;
	{
		claim();
		if
		:: mine ->
			if
			:: WHOLE(word[p]) ->
				word[p] = word[p] | 1;
				word[p] = word[p] & ~1
			:: else
			fi;
			owner[p] = 0
		:: else
		fi;
		gone[id] = true
	} unless { dead[id] }
}

proctype Drawer(byte id) {
	byte n, p, s;
	bool mine;
	{
		do
		:: n < DRAWS ->
			n++;
			take_lock();
			settle();
			assert(sum == leaf[0] + leaf[1]);
			if
			:: leaf[0] > 0 -> p = 0
			:: leaf[1] > 0 -> p = 1
			:: sum == 0 -> p = SLOTS
			fi;
			if
			:: atomic { p < SLOTS && WHOLE(word[p]) -> assert(leaf[p] == right[p]) }
			:: atomic { p < SLOTS && VOID(word[p]) -> assert(owner[p] != 0 || stale || leaf[p] == 0) }
			:: p < SLOTS && BUSY(word[p]) ->
				claim();
				if
				:: mine -> owner[p] = 0
				:: else
				fi
			:: p == SLOTS
			fi;
			lock = 0
		:: else -> break
		od;
		gone[id] = true
	} unless { dead[id] }
}

/* What the next callers find and mend once everybody has ended. */
inline last_look() {
	atomic {
		id = 0;
		if
		:: lock != 0 -> lock = 0; repair()
		:: else
		fi;
		assert(sum == leaf[0] + leaf[1]);
		p = 0;
		do
		:: p < SLOTS ->
			if
			:: owner[p] != 0 -> clear_up(); owner[p] = 0
			:: else
			fi;
			p++
		:: else -> break
		od;
		settle();
		assert(sum == leaf[0] + leaf[1]);
		p = 0;
		do
		:: p < SLOTS ->
			assert(!BUSY(word[p]));
			assert(leaf[p] == (VOID(word[p]) -> 0 : right[p]));
			p++
		:: else -> break
		od
	}
}

init {
	byte id, p, s;
	atomic {
		run Writer(1);
		run Updater(2);
		run InPlace(3);
		run Drawer(4)
	};
	kill_until_all_ended();
	last_look()
}
