// Taking a buffer's locks: acquire, repair what a dead owner left, say who was in the way.
#pragma once

#include "journal.h"
#include "priorities.h"
#include "view.h"

namespace shmrb {

// What consumption keeps, from the words. A slot that a write was about to fill stays in the queue until the write was
// counted; once it was, the slot is that write's, though it may not have got round to saying so.
inline void rebuild_consumption(const View& view) {
  Consumption consumption = view.consumption();
  std::vector<int64_t> records, empty;
  for (int64_t slot = 0; slot < view.capacity; ++slot) {
    uint64_t word = order::observe(&view.words[slot]);
    bool is_first_write = word_busy(word) && word_revision(word) == 0;
    if (word_generation(word) == 0 || !ticket_is_live(view, slot)) {
      consumption.forget(slot);
    } else if (word_void(word) || (is_first_write && consumption.is_queued(slot))) {
      if (view.has(kRefills)) empty.push_back(slot);
      else consumption.forget(slot);
    } else {
      if (is_first_write && consumption.is_consumed(slot)) consumption.forget(slot);
      records.push_back(slot);
    }
  }
  consumption.rebuild(std::move(records), empty);
}

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
  if (order::observe(&lock.dirty)) {
    if (view.has(kPriorities)) rebuild_tree(view);
    if (view.has(kConsumption)) rebuild_consumption(view);
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
