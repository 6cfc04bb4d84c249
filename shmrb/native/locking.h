// Taking a buffer's locks: acquire, repair what a dead owner left, say who was in the way.
#pragma once

#include "journal.h"
#include "priorities.h"
#include "view.h"

namespace shmrb {

// Finishes what the dead owner of a lane's lock (or of the control lock) was changing.
inline void repair(const View& view, LockBlock& lock) {
  view.note(kLockTakeOvers);
  view.count(kTakeOvers, 1);
  if (view.has(kOneLock)) apply_journal(view, view.control->journal);
  for (uint32_t lane = 0; lane < view.lane_count; ++lane) {
    if (!view.has(kOneLock) && &view.lanes[lane].lock != &lock) continue;
    apply_journal(view, view.lanes[lane].journal);
    order::publish(&view.lanes[lane].holes_stale, 1u);  // it may have died while it counted them
  }
  if (view.has(kPriorities) && order::observe(&lock.dirty)) {
    rebuild_tree(view);
    order::publish(&lock.dirty, 0u);
  }
}

// Holds a lock of the buffer for a scope. Nobody sleeps on anything else while it is held.
class Held {
 public:
  Held(const View& view, LockBlock& lock, int64_t deadline_ns) : lock_(&lock) {
    LockResult result = acquire(lock, view.token, view.liveness, deadline_ns);
    taken_ = result.taken;
    who_ = result.who;
    if (result.owner_died) repair(view, lock);
    if (taken_) stopping::at(stopping::kHoldingLock);
  }
  ~Held() { let_go(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  void let_go() {
    if (taken_) release(*lock_);
    taken_ = false;
  }
  explicit operator bool() const { return taken_; }
  uint32_t who() const { return who_; }

 private:
  LockBlock* lock_;
  bool taken_ = false;
  uint32_t who_ = 0;
};

inline Outcome blocked_on(Waited what, uint32_t who) { return {kAgain, 0, what, who, 0}; }

}  // namespace shmrb
