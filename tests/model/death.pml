/* death.pml, included by the models: SIGKILL.
 *
 * A client's steps stand in `{ ... } unless { dead[id] }`: once dead, it makes no further step, and what it had written
 * stays. `dead[token]` is also what the protocol calls proof of death (the lock on the client's byte is gone). Nothing
 * is known of a client that is merely slow: the search lets every client rest for any time between any two steps.
 */
#ifndef KILLS
#define KILLS 1
#endif

bool dead[CLIENTS + 1];
bool gone[CLIENTS + 1];  /* finished: killing it would show nothing new */
byte kills;

#define KILL(victim) !gone[victim] && !dead[victim] -> dead[victim] = true; kills++

/* Called by init: kills up to KILLS clients at any moment, ends when all processes have ended. */
inline kill_until_all_ended() {
	do
	:: atomic { kills < KILLS && KILL(1) }
#if CLIENTS > 1
	:: atomic { kills < KILLS && KILL(2) }
#endif
#if CLIENTS > 2
	:: atomic { kills < KILLS && KILL(3) }
#endif
#if CLIENTS > 3
	:: atomic { kills < KILLS && KILL(4) }
#endif
	:: (_nr_pr == 1) -> break
	od
}
