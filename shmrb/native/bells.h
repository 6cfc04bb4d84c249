// Doorbells: they wake, they carry no data, and a wake-up for nothing is harmless. Nobody pays a system call while
// nobody waits. Every sleep is capped at 100 ms by the waiter: a killed notifier loses a wake-up in every scheme.
#pragma once

#include "abi.h"
#include "order.h"
#include "stopping.h"
#include "waiting.h"

namespace shmrb {

inline constexpr uint32_t bell_event(uint64_t word) { return static_cast<uint32_t>(word); }
inline constexpr uint32_t bell_waiting(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
inline constexpr uint64_t kOneWaiting = 1ull << 32;

// Moves the event and takes all waiters off the count; returns how many there were.
inline uint32_t take_waiters(uint64_t& bell) {
  uint64_t word = order::peek(&bell);
  while (bell_waiting(word) != 0) {
    if (order::claim(&bell, word, static_cast<uint64_t>(bell_event(word) + 1))) return bell_waiting(word);
  }
  return 0;
}

// Rings after a change. Returns the semaphore posts owed: the caller posts them, since only it has the semaphore open.
inline uint32_t ring(BellBlock& bell) {
  order::full_fence();
  uint32_t asleep = take_waiters(bell.futex);
  uint32_t owed = take_waiters(bell.semaphore);
  if (asleep != 0 || owed != 0) stopping::at(stopping::kNotifying);
  if (asleep != 0) futex_wake(reinterpret_cast<uint32_t*>(&bell.futex), INT_MAX);
  return owed;
}

// Counts the caller as waiting; it looks again at what it waits for before it sleeps. Returns the event to sleep on.
inline uint32_t enter_bell(uint64_t& bell) {
  uint64_t word = order::peek(&bell);
  while (!order::claim(&bell, word, word + kOneWaiting)) {
  }
  order::full_fence();
  stopping::at(stopping::kWaiting);
  return bell_event(word);
}

// After a time-out or a second look that succeeded: takes the count back unless a ring already took it.
inline void leave_bell(uint64_t& bell, uint32_t event) {
  uint64_t word = order::peek(&bell);
  while (bell_event(word) == event && bell_waiting(word) != 0) {
    if (order::claim(&bell, word, word - kOneWaiting)) return;
  }
}

// Sleeps on the event half, at most `ns`. False when the time passed.
inline bool sleep_on_bell(uint64_t& bell, uint32_t event, int64_t ns) {
  return futex_wait(reinterpret_cast<uint32_t*>(&bell), event, ns);
}

}  // namespace shmrb
