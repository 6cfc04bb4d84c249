/* death.pml, included by the models: SIGKILL.
 *
 * A client's steps stand in `{ ... } unless { dead[id] }`: once dead, it makes no further step, and what it had written
 * stays. `dead[token]` is also what the protocol calls proof of death (the lock on the client's byte is gone). Nothing
 * is known of a client that is merely slow: the search lets every client rest for any time between any two steps.
 */
#ifndef KILLS
#define KILLS 1
#endif
#ifndef ON_DEATH
#define ON_DEATH(victim) skip
#endif

bool dead[CLIENTS + 1];
bool gone[CLIENTS + 1];  /* finished: killing it would show nothing new */
byte kills_left = KILLS;

#define KILL(victim) \
	atomic { kills_left > 0 && !gone[victim] && !dead[victim] -> dead[victim] = true; kills_left--; ON_DEATH(victim) }

/* Called by init: kills up to KILLS clients at any moment, ends when all processes have ended. */
inline kill_until_all_ended() {
	do
	:: KILL(1)
#if CLIENTS > 1
	:: KILL(2)
#endif
#if CLIENTS > 2
	:: KILL(3)
#endif
#if CLIENTS > 3
	:: KILL(4)
#endif
#ifdef TIME_OUTS
	/* A time-out is taken when nothing else can move: no kill may be pending then. */
	:: atomic { kills_left > 0 -> kills_left = 0 }
#endif
	:: (_nr_pr == 1) -> break
	od
}
