// Clocks and futexes. A futex on a shared mapping is keyed by inode and offset, so it wakes other processes; the private
// kind that std::atomic::wait uses does not.
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstdint>

namespace shmrb {

inline int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

// Good to a few milliseconds and five times cheaper: for labels.
inline int64_t coarse_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

// Sleeps while *word == expected, at most `ns`. False when the time passed.
inline bool futex_wait(uint32_t* word, uint32_t expected, int64_t ns) {
  timespec limit{ns / 1000000000ll, ns % 1000000000ll};
  return syscall(SYS_futex, word, FUTEX_WAIT, expected, &limit, nullptr, 0) == 0 || errno != ETIMEDOUT;
}

inline void futex_wake(uint32_t* word, int count) { syscall(SYS_futex, word, FUTEX_WAKE, count, nullptr, nullptr, 0); }

}  // namespace shmrb
