// Who is alive, and the lock whose owner is its word.
//
// A client proves that it lives by a lock on one byte of live.lock that its own mapping holds (segments outlive their
// makers, pids lie, time is no proof). Its token stands in every lock, claim and lease it holds, so what a dead client
// held can be told from what a slow one holds, and taken over.
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include "abi.h"
#include "order.h"
#include "status.h"
#include "stopping.h"
#include "waiting.h"

namespace shmrb {

// A fork between taking the byte and MADV_DONTFORK would leave the lock with the child: the two exclude each other.
class ForkGuard {
 public:
  ForkGuard() { pthread_mutex_lock(mutex()); }
  ~ForkGuard() { pthread_mutex_unlock(mutex()); }
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

 private:
  static pthread_mutex_t* mutex() {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const int registered = pthread_atfork([] { pthread_mutex_lock(&lock); }, [] { pthread_mutex_unlock(&lock); },
                                                 [] { pthread_mutex_unlock(&lock); });
    (void)registered;
    return &lock;
  }
};

// Which process this is: its PID and how often it and its parents forked. The PID alone will not do, since in a PID
// namespace of its own a forked child can bear its parent's.
inline uint64_t this_process() {
  static uint32_t forks = 0;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  (void)registered;
  return static_cast<uint64_t>(forks) << 32 | static_cast<uint32_t>(getpid());
}

// Is the byte locked by anyone? `error` when the kernel would not say.
enum class ByteState { kFree, kHeld, kError };

inline ByteState byte_state(int fd, uint32_t slot) {
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = slot;
  range.l_len = 1;
  if (fcntl(fd, F_OFD_GETLK, &range) != 0) return ByteState::kError;
  return range.l_type == F_UNLCK ? ByteState::kFree : ByteState::kHeld;
}

// One locked byte, held by a mapping of live.lock and by nothing else: it survives stray closes, is not inherited by
// forked children, and goes with the process.
class HeldByte {
 public:
  HeldByte() = default;
  HeldByte(const HeldByte&) = delete;
  HeldByte& operator=(const HeldByte&) = delete;
  ~HeldByte() { release(); }

  // 0, or errno (EAGAIN: somebody holds it).
  int take(const char* path, uint32_t slot) {
    ForkGuard guard;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return errno;
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    range.l_start = slot;
    range.l_len = 1;
    int error = 0;
    if (fcntl(fd, F_OFD_SETLK, &range) != 0) {
      error = errno == EACCES ? EAGAIN : errno;
    } else {
      void* page = mmap(nullptr, kPage, PROT_NONE, MAP_SHARED, fd, 0);
      if (page == MAP_FAILED) {
        error = errno;
      } else if (madvise(page, kPage, MADV_DONTFORK) != 0) {
        error = errno;
        munmap(page, kPage);
      } else {
        page_ = page;
        home_ = this_process();
      }
    }
    close(fd);
    return error;
  }

  // A forked child has no such mapping: it forgets it without touching whatever lies there now.
  void release() {
    if (page_ && home_ == this_process()) munmap(page_, kPage);
    page_ = nullptr;
  }

 private:
  static constexpr size_t kPage = 4096;
  void* page_ = nullptr;
  uint64_t home_ = 0;
};

// Answers whether a token's client lives. `probe` is a descriptor of live.lock that itself holds nothing.
struct Liveness {
  ClientBlock* clients = nullptr;
  uint32_t max_clients = 0;
  int probe = -1;

  // On any error: alive. A token that nobody can have been given counts as alive too: it is for the audit to find.
  bool alive(uint32_t token) const {
    uint32_t slot = token_slot(token & ~kWaitersBit);
    if (slot >= max_clients) return true;
    if (order::observe(&clients[slot].epoch) != token_epoch(token)) return false;
    return byte_state(probe, slot) != ByteState::kFree;
  }
};

struct LockResult {
  bool taken = false;
  bool owner_died = false;  // the taker repairs what the lock guards before it goes on
  uint32_t who = 0;         // the living owner, when not taken
};

inline bool try_lock(LockBlock& lock, uint32_t token) {
  uint32_t free = 0;
  if (!order::claim(&lock.word, free, token)) return false;
  order::put(&lock.since_ns, static_cast<uint64_t>(coarse_ns(CLOCK_MONOTONIC_COARSE)));
  return true;
}

// Waits until `deadline_ns`. Sleeps 2 ms doubling to 32 and looks at the owner's life each time it wakes for nothing.
inline LockResult acquire(LockBlock& lock, uint32_t token, const Liveness& liveness, int64_t deadline_ns) {
  for (int spin = 0; spin < 100; ++spin) {
    if (try_lock(lock, token)) return {true, false, 0};
    order::pause_cpu();
  }
  int64_t nap = 2'000'000;
  for (;;) {
    uint32_t current = order::observe(&lock.word);
    if (current == 0) {
      // Others may sleep: the bit stays set until an unlock has woken the last of them.
      if (order::claim(&lock.word, current, token | kWaitersBit)) break;
      continue;
    }
    if (!(current & kWaitersBit)) {
      if (!order::claim(&lock.word, current, current | kWaitersBit)) continue;
      current |= kWaitersBit;
    }
    int64_t left = deadline_ns - monotonic_ns();
    bool woken = left > 0 && futex_wait(&lock.word, current, nap < left ? nap : left);
    if (!woken) {
      if (!liveness.alive(current & ~kWaitersBit) && order::claim(&lock.word, current, token | kWaitersBit)) {
        order::put(&lock.since_ns, static_cast<uint64_t>(coarse_ns(CLOCK_MONOTONIC_COARSE)));
        return {true, true, 0};
      }
      if (monotonic_ns() >= deadline_ns) return {false, false, current & ~kWaitersBit};
      if (nap < 32'000'000) nap *= 2;
    }
  }
  order::put(&lock.since_ns, static_cast<uint64_t>(coarse_ns(CLOCK_MONOTONIC_COARSE)));
  return {true, false, 0};
}

inline void release(LockBlock& lock) {
  if (order::swap(&lock.word, 0u) & kWaitersBit) futex_wake(&lock.word, 1);
}

}  // namespace shmrb
