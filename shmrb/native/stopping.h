// Named stopping points: a test tells a process to pause, stop or kill itself at the n-th pass of one of them. When none
// is armed a point costs one relaxed load of a process-private word.
#pragma once

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

#include "order.h"

namespace shmrb::stopping {

// FORMAT.md says where each lies in the protocol.
enum Point : int {
  kHoldingLock,       // a lane, control or empty lock was taken
  kClaimed,           // every slot of the write is claimed, no word changed
  kMidMark,           // the first word is busy, the others not yet
  kReserved,          // all words busy, head not moved
  kHeadMoved,         // head moved, lock still held
  kMidPayload,        // between the first column and the others
  kBeforeCommit,      // payload complete, no word published
  kMidCommit,         // the first word is published
  kCommitted,         // all words published, waiters not yet woken
  kNotifying,         // the bell's event moved, waiters not yet woken
  kUpdateClaimed,     // in place: slots claimed, no word changed
  kUpdateMarked,      // in place: one word busy
  kUpdateMidPayload,  // in place: between the first field and the others
  kUpdateBeforeCommit,
  kEmptyJournalled,   // `empty` journal published, no store made
  kEmptyMidApply,     // some of the journal's stores made
  kCharged,           // the limiter counted a sample, nothing drawn
  kDrawn,             // a batch is drawn and copied, not yet checked
  kMidLeaves,         // priorities: the first leaf of the change is set, the others not yet
  kMidTree,           // priorities: leaves set, some sums recomputed
  kByteTaken,         // attach: lock byte held, epoch not moved
  kEpochMoved,        // attach: epoch moved, last tenant not recovered
  kRecovering,        // recovery of a dead client: a slot of its was claimed
  kRecovered,         // recovery of a dead client: done, its entry not cleared
  kWaiting,           // on a bell: counted as waiting, not asleep
  kLeased,            // a lane lease was taken
  kSized,             // creation: files reserved, not filled
  kFilled,            // creation: everything but the name
  kDeclared,          // creation: declaration named, no memory
  kDropping,          // drop: state is dead, files still there
  kMidTake,           // consumption: the first record of a draw is taken, the others not
  kTaken,             // consumption: records are taken, nothing copied
  kMidFinish,         // consumption: the first record of a draw is finished, the others not
  kMidReturn,         // consumption: the first record is given back, the others not
  kPoints,
};

inline constexpr const char* kNames[kPoints] = {
    "holding_lock", "claimed", "mid_mark", "reserved", "head_moved", "mid_payload", "before_commit", "mid_commit",
    "committed", "notifying", "update_claimed", "update_marked", "update_mid_payload", "update_before_commit",
    "empty_journalled", "empty_mid_apply", "charged", "drawn", "mid_leaves", "mid_tree", "byte_taken", "epoch_moved", "recovering", "recovered",
    "waiting", "leased", "sized", "filled", "declared", "dropping", "mid_take", "taken", "mid_finish", "mid_return"};

enum Action : int { kPause, kStop, kKill };

struct Armed {
  int point = -1;
  int action = kKill;
  int passes = 1;     // fire at this pass
  int pause_ms = 0;
};

inline Armed armed;

inline int find(const char* name) {
  for (int i = 0; i < kPoints; ++i)
    if (std::strcmp(kNames[i], name) == 0) return i;
  return -1;
}

inline void arm(int point, int action, int passes, int pause_ms) {
  armed.action = action;
  armed.passes = passes;
  armed.pause_ms = pause_ms;
  order::publish(&armed.point, point);
}

inline void fire() {
  if (order::bump(&armed.passes, -1) != 1) return;
  order::publish(&armed.point, -1);
  if (armed.action == kKill) kill(getpid(), SIGKILL);
  if (armed.action == kStop) kill(getpid(), SIGSTOP);
  if (armed.action == kPause) {
    timespec rest{armed.pause_ms / 1000, (armed.pause_ms % 1000) * 1000000L};
    while (nanosleep(&rest, &rest) != 0) {
    }
  }
}

inline void at(Point point) {
  if (__builtin_expect(order::peek(&armed.point) == point, 0)) fire();
}

}  // namespace shmrb::stopping
