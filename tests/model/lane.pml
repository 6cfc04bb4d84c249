/* lane.pml: one lane, its lock, its tickets and `empty` (segments.md 2 to 4, FORMAT.md 3 to 5).
 *
 * The lane lock holds its owner's token and is taken over after a death. A writer reserves one row under it: claim the
 * slot of ticket `head`, mark it, move head; then it copies and publishes without the lock. `empty` moves floor to the next
 * multiple of the lane's capacity C, rows ever reserved (head + offset) to 0 or not, and head to floor, through a redo
 * journal {count, entries}: the entries, then count, then the stores in order, then count = 0. Who takes the lock over
 * makes the stores again.
 *
 * As floor is a multiple of C, position p is live exactly when head > floor + p: nothing to subtract, nothing to wrap.
 * `empty` stores floor before head, so readers load head before floor. Public stamp + 1 = generation, one more where the
 * slot is not live, and before what it will be while a first write (busy, revision 0) is in flight; the next write of an
 * emptied slot adds two. (Internal generation 0 = never written.)
 *
 * The lane starts full, with -DFRESH empty. Actors by flag: WRITERS (1 or 2, WRITES rows each), EMPTIES (calls of one
 * client), READER, UPDATER, OBSERVER (of public stamps and rows). Writers, the emptier and the updater may be killed between
 * any two steps.
 *
 * Checked: a read is whole and of no record that was emptied before it began; nothing emptied is updated; stamps that are
 * shown never fall, and a new record's stamp is higher than every one that its slot ever showed; shown rows once were true;
 * at every entry into the lock and at the end head, floor and rows are what was reserved and emptied; nobody hangs; every
 * slot can be claimed afterwards.
 *
 * Mutants, each must fail, with the actors given:
 *   NO_PROOF             all       take over a lock that a slow client holds         fields disagree
 *   NO_REPLAY            all       the taker of the lock does not replay             fields disagree
 *   NO_JOURNAL           all       `empty` stores one field after the other          fields disagree
 *   COUNT_FIRST          all       count before the entries                          fields disagree
 *   UNLOCK_FIRST         all       the lock is let go before head moves              one ticket for two rows
 *   HEAD_FIRST           READER    head moves before the slot is marked              an emptied record is read
 *   RAISE_HEAD_FIRST     READER    `empty` stores head before floor                  an emptied record is read
 *   LOAD_FLOOR_FIRST     READER    floor is loaded before head                       an emptied record is read
 *   NO_LIVENESS          UPDATER   an update does not look at head and floor         an emptied record is changed
 *   ADD_ONE              OBSERVER  the first write after `empty` adds one            a stamp for two records
 *   STAMP_BUSY           OBSERVER  a first write in flight is shown like any other   a stamp for two records
 *   STAMP_RANGE_FIRST    OBSERVER  head and floor are loaded before the first look   a stamp for two records
 *   ROWS_ONCE            OBSERVER  rows are read without comparing floor and head    rows that never were
 */
#define CLIENTS 4
#include "death.pml"
#ifndef C
#define C 2
#endif
#ifndef WRITERS
#define WRITERS 1
#endif
#ifndef WRITES
#define WRITES 1
#endif
#ifndef EMPTIES
#define EMPTIES 1
#endif

#define PLAIN(w) (((w) & 3) == 0)
#define BUSY(w) ((w) & 1)
#define GENERATION(w) ((w) >> 4)
#define CONTENT(w) ((w) >> 2)
#define REVISION(w) (((w) >> 2) & 3)
#define NEXT_REVISION(w) (((w) & 240) | (REVISION(w) == 3 -> 4 : ((w) & 12) + 4))  /* never 0: that is a first write */
#define LIVE(h, f, p) ((h) > (f) + (p))

#define HEAD 0
#define FLOOR 1
#define OFFSET 2
#define ROWS(h, o) (((h) + (o)) & 255)

byte word[C], owner[C], d0[C], d1[C];
byte lock, head, floor, offset;
byte count, entry[3], value[3];

byte at_work[C];   /* ghost: who stands between mark and publish */
byte shown[C];     /* ghost: highest public stamp + 1 that anybody was shown */
byte emptied[C];   /* ghost: highest generation that an `empty` took */
byte true_head, true_floor, true_rows;
bool once[16];     /* ghost: rows that ever were true */

#define ONCE(rows) (rows < 16 && once[rows & 15])
#define FIELDS_AGREE (head == true_head && floor == true_floor && ROWS(head, offset) == true_rows)

inline store(f, v) {
	d_step {
		if
		:: (f) == HEAD -> head = v
		:: (f) == OFFSET -> offset = v
		:: (f) == FLOOR ->
			if
			:: floor != v ->
				floor = v;
				i = 0;
				do
				:: i < C -> emptied[i] = GENERATION(word[i]); i++
				:: else -> i = 0; break
				od
			:: else
			fi
		fi
	}
}

/* What the next owner does for a dead one; also how every change of several fields is carried out. */
inline apply_journal() {
	k = 0;
	do
	:: k < count -> store(entry[k], value[k]); k++
	:: else -> k = 0; break
	od;
	count = 0
}

/* CAS 0 -> me, or wait, holding nothing, until the owner lets go or is provably dead: CAS dead -> me, and repair. */
inline lock_lane() {
	do
	:: atomic { lock == 0 -> lock = id; assert(count == 0 && FIELDS_AGREE); break }
	:: atomic { lock != 0 -> o = lock };
#ifndef NO_PROOF
		(lock != o || dead[o]);
#endif
		if
#ifdef NO_PROOF
		:: atomic { lock == o -> lock = id; o = 0 }
#else
		:: atomic { dead[o] && lock == o -> lock = id; o = 0 }
#endif
#ifndef NO_REPLAY
			apply_journal();
#endif
			assert(FIELDS_AGREE);
			break
		:: atomic { else -> o = 0 }
		fi
	od
}

/* The half-written record of the dead is gone, and every handle to it is stale. */
inline reclaim() {
	if
	:: atomic {
		BUSY(word[p]) ->
		assert(dead[at_work[p]]);
		at_work[p] = 0;
		word[p] = ((word[p] & 240) + 16) | 2
		}
	:: else
	fi
}

/* got = the slot is mine; otherwise o is the living owner to wait for, or 0 to look again. */
inline try_claim() {
	if
	:: atomic { owner[p] == 0 -> owner[p] = id; got = true }
	:: atomic { owner[p] != 0 -> o = owner[p]; got = false };
		if
		:: atomic { dead[o] && owner[p] == o -> owner[p] = id; o = 0; got = true };
			reclaim()
		:: else
		fi
	fi
}

inline mark_new() {
	d_step {
		assert(at_work[p] == 0 && owner[p] == id);
		at_work[p] = id;
		w = GENERATION(word[p]) + 1;
#ifndef ADD_ONE
		if
		:: w > 1 && !LIVE(head, floor, p) -> w++
		:: else
		fi;
#endif
		assert(w < 16 && w > shown[p]);
		word[p] = (w << 4) | 1;
		w = 0
	}
}

inline move_head() {
	atomic { true_head++; true_rows++; once[true_rows] = true; head = head + 1 }
}

proctype Writer(byte id) {
	byte o, p, k, i, w, times;
	bool got;
	{
		do
		:: times < WRITES ->
			lock_lane();
			p = head % C;
			try_claim();
			if
			:: !got ->
				lock = 0;
				(owner[p] != o || dead[o]);
				o = 0
			:: else ->
#ifdef HEAD_FIRST
				move_head();
				mark_new();
				lock = 0;
#else
				mark_new();
#ifdef UNLOCK_FIRST
				lock = 0;
#endif
				move_head();
#ifndef UNLOCK_FIRST
				lock = 0;
#endif
#endif
				d0[p] = CONTENT(word[p]);
				d1[p] = CONTENT(word[p]);
				atomic { assert(at_work[p] == id); at_work[p] = 0; word[p] = word[p] & 252 };
				atomic { owner[p] = 0; times++ }
			fi
		:: else -> break
		od
	} unless { dead[id] };
	atomic { o = 0; p = 0; k = 0; i = 0; w = 0; times = 0; got = false; gone[id] = true }
}

#define AHEAD (((head + C - 1) / C) * C)

proctype Emptier(byte id) {
	byte o, k, i, rows, times;
	{
		do
		:: times < EMPTIES ->
			lock_lane();
			if
			:: rows = 0
			:: rows = ROWS(head, offset)
			fi;
#ifdef NO_JOURNAL
			atomic { true_head = AHEAD; true_floor = AHEAD; true_rows = rows; once[rows] = true; store(FLOOR, AHEAD) };
			store(OFFSET, (rows + 256 - floor) & 255);
			store(HEAD, floor);
#else
#ifdef COUNT_FIRST
			atomic { true_head = AHEAD; true_floor = AHEAD; true_rows = rows; once[rows] = true; count = 3 };
#endif
#ifdef RAISE_HEAD_FIRST
			atomic { entry[0] = HEAD; value[0] = AHEAD };
			atomic { entry[1] = FLOOR; value[1] = AHEAD };
#else
			atomic { entry[0] = FLOOR; value[0] = AHEAD };
			atomic { entry[1] = HEAD; value[1] = AHEAD };
#endif
			atomic { entry[2] = entry[1]; value[2] = value[1]; entry[1] = OFFSET; value[1] = (rows + 256 - AHEAD) & 255 };
#ifndef COUNT_FIRST
			atomic { true_head = AHEAD; true_floor = AHEAD; true_rows = rows; once[rows] = true; count = 3 };
#endif
			apply_journal();
#endif
			atomic { lock = 0; rows = 0; times++ }
		:: else -> break
		od
	} unless { dead[id] };
	atomic { o = 0; k = 0; i = 0; rows = 0; times = 0; gone[id] = true }
}

/* Load what says whether position p is live. */
inline load_range() {
#ifdef LOAD_FLOOR_FIRST
	f = floor;
	h = head
#else
	h = head;
	f = floor
#endif
}

proctype Reader() {
	byte p, h, f, w, a, b, before;
	select(p : 0 .. C - 1);
	before = emptied[p];
	if
	:: load_range(); w = word[p]  /* a draw */
	:: w = word[p]; load_range()  /* by index */
	fi;
	if
	:: LIVE(h, f, p) && PLAIN(w) && GENERATION(w) > 0 ->
		a = d0[p];
		b = d1[p];
		assert(word[p] != w || (a == CONTENT(w) && b == CONTENT(w) && GENERATION(w) > before))
	:: else
	fi;
	atomic { p = 0; h = 0; f = 0; w = 0; a = 0; b = 0; before = 0 }
}

proctype Updater(byte id) {
	byte p, o, h, f, handle, before;
	bool got;
	{
		select(p : 0 .. C - 1);
		atomic { handle = word[p]; before = emptied[p] };
		do
		:: try_claim();
			if
			:: got -> break
			:: else -> (owner[p] != o || dead[o]); o = 0
			fi
		od;
		if
		:: PLAIN(handle) && PLAIN(word[p]) && GENERATION(word[p]) == GENERATION(handle) ->
			load_range();
			if
#ifdef NO_LIVENESS
			:: GENERATION(handle) > 0 ->
#else
			:: LIVE(h, f, p) ->
#endif
				atomic {
					assert(at_work[p] == 0 && owner[p] == id && GENERATION(handle) > before);
					at_work[p] = id;
					word[p] = NEXT_REVISION(word[p]) | 1
				};
				d0[p] = CONTENT(word[p]);
				d1[p] = CONTENT(word[p]);
				atomic { at_work[p] = 0; word[p] = word[p] & 252 }
			:: else
			fi
		:: else
		fi;
		owner[p] = 0
	} unless { dead[id] };
	atomic { p = 0; o = 0; h = 0; f = 0; handle = 0; before = 0; got = false; gone[id] = true }
}

/* The stamp of one slot: head and floor are loaded between two equal looks at its word. And the lane's rows. */
proctype Observer() {
	byte p, h, f, w, stamp, before;
	select(p : 0 .. C - 1);
	before = shown[p];
#ifdef STAMP_RANGE_FIRST
	load_range();
	w = word[p];
#else
	w = word[p];
	load_range();
#endif
	atomic {
		if
		:: word[p] == w ->
			stamp = GENERATION(w);
			if
			:: stamp == 0
#ifdef STAMP_BUSY
			:: stamp > 0 && !LIVE(h, f, p) -> stamp++
#else
			:: stamp > 0 && BUSY(w) && REVISION(w) == 0 -> stamp--
			:: stamp > 0 && !(BUSY(w) && REVISION(w) == 0) && !LIVE(h, f, p) -> stamp++
#endif
			:: else
			fi;
			assert(stamp >= before);
			if
			:: stamp > shown[p] -> shown[p] = stamp
			:: else
			fi
		:: else
		fi;
		stamp = 0; before = 0; p = 0; w = 0
	};
	h = head;
	w = offset;
	f = floor;
#ifdef ROWS_ONCE
	assert(ONCE(ROWS(h, w)));
#else
	assert(f > h || ONCE(ROWS(h, w)));
#endif
	atomic { h = 0; f = 0; w = 0 }
}

init {
	byte id, o, k, i, p;
	bool got;
	atomic {
#ifdef FRESH
		once[0] = true;
#else
		head = C; true_head = C; true_rows = C; once[C] = true;
		do
		:: p < C -> word[p] = 16; d0[p] = 4; d1[p] = 4; p++
		:: else -> p = 0; break
		od;
#endif
#ifdef READER
		run Reader();
#endif
#ifdef OBSERVER
		run Observer();
#endif
		run Writer(1);
#if WRITERS > 1
		run Writer(2);
#endif
		run Emptier(3);
#ifdef UPDATER
		run Updater(4)
#endif
	}
	kill_until_all_ended();
	/* Whoever comes next finds a lane that agrees with itself, and no slot in the way. */
	atomic {
		id = CLIENTS + 1;
		lock_lane();
		assert(floor % C == 0 && head >= floor);
		do
		:: p < C ->
			try_claim();
			assert(got && !BUSY(word[p]));
			assert(!PLAIN(word[p]) || (d0[p] == CONTENT(word[p]) && d1[p] == CONTENT(word[p])));
			p++
		:: else -> break
		od
	}
}
