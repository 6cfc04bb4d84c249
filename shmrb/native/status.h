// Result codes of the native calls. No exception crosses the boundary.
#pragma once

#include <cstdint>

namespace shmrb {

enum Status : int {
  kOk = 0,
  kAgain = 1,     // a time slice is over; nothing is held and nothing was changed
  kEmpty = 2,     // no record that may be drawn
  kLimited = 3,   // the rate limiter refuses
  kClosed = 4,    // this attachment was closed
  kDead = 5,      // the buffer was dropped
  kCorrupt = 6,   // a shared word holds what no protocol step writes
  kFull = 7,      // no free client slot
  kUnproven = 8,  // the file system does not keep the lock byte: proof of life is impossible
  kBusy = 9,      // leased by a living client
  kReadOnly = 10, // this attachment may not write
  kSystem = 11,      // a system call failed; `value` is its errno
  kRefused = 12,     // a value of the call is impossible; `value` is its row
  kNoMass = 13,      // there are records, and none has a positive priority mass
  kNoWindow = 14,    // there are records, and no window of the asked shape fits anywhere
};

// What a call that returns kAgain waited for.
enum Waited : int { kNothing = 0, kLaneLock = 1, kControlLock = 2, kEmptyLock = 3, kSlotOwner = 4 };

// value: the call's own result. who: token in the way. wake: semaphore posts owed to waiters, records bell in the low
// 32 bits, room bell in the high 32 bits.
struct Outcome {
  Status status = kOk;
  int64_t value = 0;
  Waited what = kNothing;
  uint32_t who = 0;
  uint64_t wake = 0;
};

}  // namespace shmrb
