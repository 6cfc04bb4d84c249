/* limiter.pml: Reverb's arithmetic between processes that die (segments.md 5, FORMAT.md 6).
 *
 * One lane of CAPACITY slots. Producers insert ROWS at a time, consumers draw BATCH at a time, for ever; client 1 (a
 * producer) or 3 (a consumer) may be killed between any two steps: one of them, since with both gone somebody may have
 * nobody to wait for. `credit` = inserts * SPI - samples, inserts = rows reserved - uncounted: a reservation moves the head,
 * and with it credit, in one store; whoever voids a row that was never published adds one to uncounted afterwards, without
 * the lock; a draw is charged under the lock and given back, without it, when it fails. `holes` (void rows among the live) is
 * a hint: whoever voids sets `stale` before and after. `marked` is set to where head will be before the first mark: who takes
 * over a slot between head and marked, looking before it claims, does not count it, and the next to reserve settles all such
 * slots first.
 * A consumer finds something legal to draw when WINDOW rows are whole.
 *
 * A consumer that cannot draw for want of records, refused because live < MIN_SIZE or with nothing legal, opens the insert
 * side for one call: the producer that goes ahead next shuts it again.
 *
 * A blocked client is a guard that waits until another try would go differently, or a dead client is to be reaped.
 *
 * Checked: nobody is blocked for ever where MAX_DIFF - MIN_DIFF >= BATCH + ROWS * SPI; credit stays within bounds; whenever
 * no slot is claimed and stale is not set, credit is what it would be if every step were whole, and holes are right. (Not
 * searched: a second death, of who reclaims, between a void and its count; it bends credit by that row.)
 *
 * Mutants, each must fail:
 *   NARROW        MAX_DIFF - MIN_DIFF is less (two, all is whole) both sides blocked
 *   NEVER_OPEN    nobody opens                                   both sides blocked (WINDOW > MIN_SIZE)
 *   OPEN_AT_DRAW  only a draw that found nothing legal opens     both sides blocked, at the start or after a death
 *   STAYS_OPEN    open until a draw succeeds                     credit without bound
 *   KEEP_CHARGE   the charge of a draw that fails is kept        credit wrong
 *   NO_RECLAIM    rows reclaimed unpublished stay inserts        credit wrong after a death
 *   NO_MARKED     every row reclaimed unpublished is counted     credit wrong after a death before head moved
 *   CLAIM_FIRST   who takes over claims before it looks          credit wrong after a death
 *   STALE_ONCE    stale is set before the void only              holes wrong
 */
#define CLIENTS 4
#define TIME_OUTS
#include "death.pml"

#ifndef PRODUCERS
#define PRODUCERS 2
#endif
#ifndef CONSUMERS
#define CONSUMERS 1
#endif
#ifndef CAPACITY
#define CAPACITY 4
#endif
#ifndef ROWS
#define ROWS 2
#endif
#ifndef BATCH
#define BATCH 1
#endif
#ifndef SPI
#define SPI 1
#endif
#ifndef MIN_SIZE
#define MIN_SIZE 2
#endif
#ifndef WINDOW
#define WINDOW 1
#endif
#ifndef MIN_DIFF
#define MIN_DIFF (MIN_SIZE * SPI - 1)
#endif
#ifdef NARROW
#define MAX_DIFF (MIN_DIFF + BATCH + ROWS * SPI - 2)
#else
#define MAX_DIFF (MIN_DIFF + BATCH + ROWS * SPI)
#endif
/* What openings let through until a draw succeeds, and what consumers have charged and may give back. */
#define HIGHEST (MAX_DIFF + 2 * CAPACITY * SPI + CONSUMERS * BATCH)
#define LOWEST (MIN_DIFF < 0 -> MIN_DIFF : 0)

#define LAP (2 * CAPACITY)
#define AHEAD(from, to) (((to) + LAP - (from)) % LAP)
#define AT(k) ((head + (k)) % CAPACITY)
#define IS_MARKED(k) (AHEAD(head, marked) > (k) && AHEAD(head, marked) <= ROWS)

#define NEVER 0
#define WHOLE 1
#define WRITING 2
#define VOID 3

byte slot[CAPACITY], owner[CAPACITY];
byte lock, head, marked;       /* tickets modulo LAP, for they only grow */
byte tickets;                  /* live ones */
byte holes, opened_by;
bool stale;
short credit;

bool counted[CAPACITY];        /* ghost: the head has passed this row */
short bent;                    /* ghost: credit less what it would be if every step were whole */

#define DEATHS (KILLS - kills_left)
#if CAPACITY == 4
#define SUM(f) (f(0) + f(1) + f(2) + f(3))
#else
#define SUM(f) (f(0) + f(1) + f(2) + f(3) + f(4) + f(5) + f(6) + f(7))
#endif
#define IS_WHOLE(i) (slot[i] == WHOLE)
#define IS_WRITING(i) (slot[i] == WRITING)
#define IS_HOLE(i) (slot[i] == VOID && i < tickets)
#define IS_CLAIMED(i) (owner[i] != 0)
#define IS_LEFT(i) dead[owner[i]]
#define HOLES SUM(IS_HOLE)
#define REAPABLE (SUM(IS_LEFT) > 0)

/* `live` is what the decider has counted, or for a guard what it would count. */
#define LIVE_BY_HINT (tickets - holes)
#define LIVE_BY_WORDS (tickets - HOLES)
#define IS_OPEN (opened_by != 0 && !dead[opened_by])
#define WITHIN(live) ((live) + ROWS <= MIN_SIZE || credit + ROWS * SPI <= MAX_DIFF)
#define MAY_SAMPLE(live) ((live) >= MIN_SIZE && credit - BATCH >= MIN_DIFF)

/* Takes the lock, repairs, and counts holes anew where somebody voided a slot. */
inline acquire() {
	do
	:: atomic { lock == 0 -> lock = id; break }
	:: atomic { lock != 0 && dead[lock] -> lock = id; stale = true; break }
	od;
	if
	:: atomic { stale -> stale = false };
		holes = HOLES
	:: atomic {
		!stale ->
		assert(SUM(IS_CLAIMED) > 0 || (holes == HOLES && bent == 0))
		}
	fi
}

/* Before the claim of a slot from a dead owner: is it one that head does not count? Marked is loaded first. */
inline look_at_marked(i) {
	seen = marked;
	atomic {
		seen = AHEAD(head, seen);
		uncounted = seen <= ROWS && (i + CAPACITY - AT(0)) % CAPACITY < seen;
		seen = 0
	}
}

/* REQUIRES: slot i was just claimed from a dead owner. */
inline void_row(i) {
	stale = true;
	if
	:: atomic { slot[i] == WRITING -> slot[i] = VOID; bent = bent + counted[i] * SPI };
#ifndef STALE_ONCE
		stale = true;
#endif
#ifndef NO_RECLAIM
		atomic {
			if
#ifdef NO_MARKED
			:: true ->
#else
			:: !uncounted ->
#endif
				credit = credit - SPI;
				bent = bent - SPI;
				assert(credit >= LOWEST - ROWS * SPI * DEATHS)
			:: else
			fi;
			uncounted = false
		}
#endif
	:: atomic { else -> uncounted = false }
	fi
}

/* Takes slot k over from its dead owner o, and frees it. */
inline reclaim() {
#ifndef CLAIM_FIRST
	look_at_marked(k);
#endif
	if
	:: atomic { owner[k] == o -> owner[k] = id; o = 0 };
#ifdef CLAIM_FIRST
		look_at_marked(k);
#endif
		void_row(k);
		atomic { owner[k] = 0; k = 0 }
	:: atomic { else -> o = 0; uncounted = false; k = 0 }
	fi
}

inline reap() {
	do
	:: atomic {
		REAPABLE ->
		k = 0;
		do
		:: !dead[owner[k]] -> k++
		:: else -> break
		od;
		o = owner[k]
		};
		reclaim()
	:: else -> break
	od
}

/* REQUIRES: the lock. Slots between head and marked are in dead hands: they are settled while it can be told. */
inline settle_marked() {
	do
	:: atomic { IS_MARKED(first) && dead[owner[AT(first)]] -> k = AT(first); o = owner[k] };
		reclaim();
		first++
	:: atomic { IS_MARKED(first) && !dead[owner[AT(first)]] -> first++ }
	:: atomic { else -> first = 0; marked = head; break }
	od
}

proctype Producer(byte id) {
	byte k, first, living, o, seen;
	bool uncounted;
	{
		do
		:: acquire();
			settle_marked();
			if
			:: atomic { !WITHIN(LIVE_BY_HINT) && !IS_OPEN -> lock = 0 };
				(WITHIN(LIVE_BY_WORDS) || IS_OPEN || REAPABLE);
				reap()
			:: else ->
				do
				:: atomic { k < ROWS && owner[AT(k)] == 0 -> owner[AT(k)] = id; k++ }
				:: atomic { k < ROWS && dead[owner[AT(k)]] -> o = owner[AT(k)] };
					look_at_marked(AT(k));
					if
					:: atomic { owner[AT(k)] == o -> owner[AT(k)] = id; o = 0 };
						void_row(AT(k));
						k++
					:: atomic { else -> o = 0; uncounted = false }
					fi
				:: atomic {
					k < ROWS && owner[AT(k)] != 0 && !dead[owner[AT(k)]] ->
					living = owner[AT(k)];
					first = AT(k);
					do
					:: k > 0 -> k--; owner[AT(k)] = 0
					:: else -> break
					od;
					lock = 0;
					break
					}
				:: k == ROWS -> break
				od;
				if
				:: living != 0 ->
					(owner[first] != living || dead[living]);
					atomic { first = 0; living = 0 }
				:: else ->
#ifndef STAYS_OPEN
					opened_by = 0;
#endif
					marked = (head + ROWS) % LAP;
					do
					:: atomic {
						k > 0 ->
						k--;
						first = first + (slot[AT(k)] == VOID && AT(k) < tickets);
						slot[AT(k)] = WRITING;
						counted[AT(k)] = false
						}
					:: atomic { else -> holes = holes - (first < holes -> first : holes); break }
					od;
					atomic {
						do
						:: k < ROWS -> counted[AT(k)] = true; k++
						:: else -> break
						od;
						first = AT(0);
						head = (head + ROWS) % LAP;
						tickets = (tickets + ROWS < CAPACITY -> tickets + ROWS : CAPACITY);
						credit = credit + ROWS * SPI;
						assert(credit <= HIGHEST)
					};
					lock = 0;
					do
					:: atomic {
						k > 0 ->
						k--;
						slot[(first + k) % CAPACITY] = WHOLE;
						owner[(first + k) % CAPACITY] = 0
						}
					:: atomic { else -> first = 0; break }
					od
				fi
			fi
		od
	} unless { dead[id] };
	atomic { k = 0; first = 0; living = 0; o = 0; seen = 0; uncounted = false; gone[id] = true }
}

#ifdef NEVER_OPEN
#define OPEN skip
#define MAY_OPEN false
#else
#define OPEN opened_by = id
#define MAY_OPEN !IS_OPEN
#endif
#ifdef OPEN_AT_DRAW
#define IN_WANT(live) false
#else
#define IN_WANT(live) ((live) < MIN_SIZE)
#endif
#define NOTHING_LEGAL (SUM(IS_WHOLE) < WINDOW && SUM(IS_WRITING) == 0)
#define WORTH_A_TRY \
	(MAY_SAMPLE(LIVE_BY_WORDS) && SUM(IS_WHOLE) >= WINDOW || \
	 MAY_OPEN && (IN_WANT(LIVE_BY_WORDS) || MAY_SAMPLE(LIVE_BY_WORDS) && NOTHING_LEGAL))

proctype Consumer(byte id) {
	byte k, o, seen;
	bool uncounted;
	{
		do
		:: acquire();
			if
			:: atomic { MAY_SAMPLE(LIVE_BY_HINT) -> credit = credit - BATCH; lock = 0 };
				if
				:: atomic { SUM(IS_WHOLE) >= WINDOW -> opened_by = 0 }
				:: atomic {
					SUM(IS_WHOLE) < WINDOW ->
#ifdef KEEP_CHARGE
					bent = bent - BATCH
#else
					credit = credit + BATCH;
					assert(credit <= HIGHEST)
#endif
					};
					if
					:: NOTHING_LEGAL -> OPEN
					:: else
					fi;
				fi
			:: else ->
				if
				:: IN_WANT(LIVE_BY_HINT) -> OPEN
				:: else
				fi;
				lock = 0
			fi;
			(WORTH_A_TRY || REAPABLE);
			reap()
		od
	} unless { dead[id] };
	atomic { k = 0; o = 0; seen = 0; uncounted = false; gone[id] = true }
}

init {
	atomic {
		gone[1] = (PRODUCERS < 2);
		gone[2] = true;
		gone[3] = (CONSUMERS < 2);
		gone[4] = true;
#if PRODUCERS > 1
		run Producer(1);
#endif
		run Producer(2);
#if CONSUMERS > 1
		run Consumer(3);
#endif
		run Consumer(4)
	}
	kill_until_all_ended()
}
