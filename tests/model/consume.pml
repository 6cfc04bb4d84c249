/* consume.pml: records that are drawn once, and slots that are filled again (FORMAT.md 6, Consumption).
 *
 * A writer fills slots from the queue: mark, count by journal, unlock, copy, publish. Two consumers take, copy, and finish;
 * then the slot is queued again. With hold the user finishes it himself, after he was given it. Whoever takes the lock over
 * from the dead makes the journal's stores again and the lists anew; whoever finds a record in the hands of the dead gives
 * it back, and voids a slot that the dead was writing. Anybody may be killed between any two steps.
 *
 * Actors: writer 1 (WRITES records), consumers 2 and 3 (DRAWS each); with -DHOLD these are given records before they finish
 * them. The limiter counts a draw when it is made; giving back takes the count away.
 *
 * Checked: no slot is marked while a living consumer has yet to copy its record; without hold no record is given to the user
 * twice; a record that was finished is never taken again; in the end each record that was published was finished or can be
 * drawn, each slot can be drawn or filled, and the limiter has counted what is gone or held, and nothing else.
 *
 * Mutants, each must fail:
 *   FREE_FIRST    finish before the copy                              a slot is filled under a copy
 *   NO_REBUILD    who takes the lock over leaves the lists            a slot or a record is lost
 *   NO_JOURNAL    rows are counted and dequeued by two stores         a row is counted twice, or never
 *   NO_REPLAY     who takes the lock over forgets the journal         the limiter counts too much or too little
 *   CHARGE_FIRST  the limiter counts before the take is marked        the credit of a take that never was is gone
 *   NO_SETTLE     what the dead had taken is left with them           a record is lost
 *   SETTLE_ALL    what the living have taken is given back            a record is given twice
 *   KEEP_MEMBER   a record that is taken may be drawn                 a record is given twice
 */
#define CLIENTS 3
#include "death.pml"
#ifndef WRITES
#define WRITES 2
#endif
#ifndef DRAWS
#define DRAWS 1
#endif
#ifndef SLOTS
#define SLOTS 1
#endif

/* word: busy, void, and whose record; content: the uid that was copied in, or none */
bool busy[SLOTS], is_void[SLOTS];
byte uid[SLOTS], owner[SLOTS];
/* consumption: consumed (counts), holder, marked for a move; lists: member, queued */
bool consumed[SLOTS], marked[SLOTS], member[SLOTS], queued[SLOTS];
byte holder[SLOTS];
byte lock, moving, journal;  /* journal: 0, or what it stores: 1 counted, 2 taken, 3 not taken */
bool dirty;
short samples, inserts, value;
byte at;                     /* the slot that the journal is about */
byte lost;                   /* counted rows that died unpublished: the limiter's "uncounted" */
byte copying[SLOTS];         /* ghost: who has taken the record and not copied it */
byte given[WRITES + 1];      /* ghost: how often a record was given to the user */
bool finished[WRITES + 1], published[WRITES + 1];

#define WHOLE(s) (!busy[s] && !is_void[s] && uid[s] > 0)

/* The stores of a journal, each a step of its own; made again they change nothing. */
inline make_stores() {
	if
	:: journal == 1 -> inserts = value; queued[at] = false
	:: journal == 2 -> samples = value; moving = 2
	:: journal == 3 -> samples = value; moving = 1
	:: else
	fi;
	journal = 0
}

/* Who takes the lock over, in one step: nobody else looks while it is held, and dying here leaves it dirty. */
inline repair() {
	atomic {
#ifdef NO_REPLAY
		journal = 0;
#else
		make_stores();
#endif
#ifndef NO_REBUILD
		if
		:: dirty ->
			s = 0;
			do
			:: s < SLOTS ->
				if
				:: marked[s] -> marked[s] = false; if :: moving == 1 -> holder[s] = 0 :: else fi
				:: else
				fi;
				/* A slot that is being filled, and was not counted, is as it was: in the queue. */
				if
				:: is_void[s] || (uid[s] == 0 && !busy[s]) || (busy[s] && queued[s]) ->
					queued[s] = true; member[s] = false; holder[s] = 0; consumed[s] = true
				:: busy[s] && !queued[s] ->
					consumed[s] = false; member[s] = true; holder[s] = 0
				:: else ->
					queued[s] = consumed[s];
					if :: consumed[s] -> holder[s] = 0 :: else fi;
					member[s] = !consumed[s] && holder[s] == 0
				fi;
				s++
			:: else -> s = 0; break
			od;
			moving = 0
		:: else
		fi;
#endif
		dirty = false
	}
}

inline acquire() {
	do
	:: atomic { lock == 0 -> lock = id; break }
	:: atomic { lock != 0 && dead[lock] -> lock = id }; repair(); break
	od
}

inline release() { lock = 0 }

/* A slot in a dead writer's hands holds no record; whether it was counted, its place in the queue says. */
inline void_dead(s) {
	atomic {
		if
		:: busy[s] && dead[owner[s]] ->
			busy[s] = false; is_void[s] = true; owner[s] = 0;
			/* A journal that is announced will be made. */
			if :: !queued[s] || (journal == 1 && at == s) -> lost++; queued[s] = true; member[s] = false; consumed[s] = true :: else fi
		:: else
		fi
	}
}

/* What the dead had taken: marked, moved, unmarked. */
inline settle() {
	s = 0;
	do
	:: s < SLOTS ->
#ifndef NO_SETTLE
		if
#ifdef SETTLE_ALL
		:: holder[s] != 0 && holder[s] != id ->
#else
		:: holder[s] != 0 && dead[holder[s]] ->
#endif
			atomic { dirty = true; moving = 2 };
			marked[s] = true;
			atomic { at = s; value = samples - 1; journal = 3 };
			make_stores();
			atomic { holder[s] = 0; marked[s] = false; copying[s] = 0 };
			member[s] = true;
			atomic { moving = 0; dirty = false }
		:: else
		fi;
#endif
		void_dead(s);
		s++
	:: else -> atomic { s = 0; break }
	od
}

proctype Writer(byte id) {
	byte s, n = 1, mine;
	{
		do
		:: n <= WRITES ->
			acquire();
			settle();
			if
			:: atomic { queued[0] -> mine = 0 }
#if SLOTS > 1
			:: atomic { queued[1] -> mine = 1 }
#endif
			:: else -> atomic { release(); mine = 9 }
			fi;
			if
			:: mine == 9 ->
				/* Waits for a slot; nothing rings when a consumer dies, so it also looks then. */
				atomic { queued[0] || dead[2] || dead[3] || (gone[2] && gone[3]) -> mine = 0 };
				if :: gone[2] && gone[3] && !queued[0] -> break :: else fi
			:: else ->
				dirty = true;
				atomic {
					assert(copying[mine] == 0 || dead[copying[mine]]);
					owner[mine] = id; busy[mine] = true; is_void[mine] = false; uid[mine] = n; consumed[mine] = true
				};
#ifdef NO_JOURNAL
				inserts++;
				queued[mine] = false;
#else
				atomic { at = mine; value = inserts + 1; journal = 1 };
				make_stores();
#endif
				atomic { consumed[mine] = false; member[mine] = true };
				dirty = false;
				release();
				atomic { busy[mine] = false; owner[mine] = 0; published[n] = true; n++ }
			fi
		:: else -> break
		od
	} unless { dead[id] };
	atomic { s = 0; n = 0; mine = 0; gone[id] = true }
}

inline finish_it() {
	acquire();
	if
	:: holder[mine] == id && uid[mine] == what ->
		dirty = true;
		atomic { consumed[mine] = true; finished[what] = true };
		holder[mine] = 0;
		queued[mine] = true;
		dirty = false
	:: else
	fi;
	release()
}

proctype Consumer(byte id) {
	byte s, mine, what, times;
	{
		do
		:: times < DRAWS ->
			acquire();
			settle();
			if
			:: atomic { member[0] && WHOLE(0) -> mine = 0 }
#if SLOTS > 1
			:: atomic { member[1] && WHOLE(1) -> mine = 1 }
#endif
			:: else -> mine = 9
			fi;
			if
			:: mine != 9 ->
				atomic { what = uid[mine]; assert(!finished[what]); dirty = true; moving = 1 };
#ifdef CHARGE_FIRST
				samples++;
				atomic { marked[mine] = true; holder[mine] = id; copying[mine] = id };
				moving = 2;
#else
				atomic { marked[mine] = true; holder[mine] = id; copying[mine] = id };
#endif
#ifndef KEEP_MEMBER
				member[mine] = false;
#endif
#ifndef CHARGE_FIRST
				atomic { at = mine; value = samples + 1; journal = 2 };
				make_stores();
#endif
				marked[mine] = false;
				atomic { moving = 0; dirty = false };
				release();
#ifdef FREE_FIRST
				finish_it();
#endif
				/* The copy: a slot that is marked meanwhile would tear it. */
				atomic { if :: copying[mine] == id -> copying[mine] = 0 :: else fi };
#ifdef HOLD
				given[what]++;
#endif
#ifndef FREE_FIRST
				finish_it();
#endif
#ifndef HOLD
				atomic { given[what]++; assert(given[what] == 1) };
#endif
				skip
			:: else -> release()
			fi;
			times++
		:: else -> break
		od
	} unless { dead[id] };
	atomic { s = 0; mine = 0; what = 0; times = 0; gone[id] = true }
}

init {
	byte s, id = 4, n, gone_or_held;
	atomic {
		n = 0;
		do
		:: n < SLOTS -> queued[n] = true; consumed[n] = true; n++
		:: else -> break
		od;
		run Writer(1);
		run Consumer(2);
		run Consumer(3)
	}
	kill_until_all_ended();
	atomic {
		/* The next caller. */
		if :: lock != 0 -> assert(dead[lock]); repair() :: else fi;
		dead[2] = true;
		dead[3] = true;
		settle();
		n = 1;
		do
		:: n <= WRITES ->
			if
			:: published[n] && !finished[n] ->
				s = 0;
				do
				:: s < SLOTS && uid[s] == n && member[s] && WHOLE(s) -> break
				:: s < SLOTS && !(uid[s] == n && member[s] && WHOLE(s)) -> s++
				:: else -> assert(false)
				od
			:: else
			fi;
			if :: finished[n] -> gone_or_held++ :: else fi;
			n++
		:: else -> break
		od;
		assert(samples == gone_or_held);
		s = 0; n = 0;
		do
		:: s < SLOTS ->
			assert(member[s] != queued[s] && holder[s] == 0);
			if :: member[s] -> n++ :: else fi;
			s++
		:: else -> break
		od;
		assert(inserts - lost == gone_or_held + n)
	}
}
