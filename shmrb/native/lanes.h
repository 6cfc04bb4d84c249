// What happens to some lanes and not to others: changing lane at a trajectory's end, emptying a few.
#pragma once

#include "lifecycle.h"

namespace shmrb {

// When the caller's open trajectory in this lane has ended: a free lane that was not written since, in exchange for it.
// value: the lane to write from now on, this one when there is none. REQUIRES: the caller leases the lane.
inline Outcome rotate_lane(const View& view, uint32_t lane) {
  const LaneBlock& mine = view.lanes[lane];
  if (order::peek(&mine.last_writer) != view.token || !order::peek(&mine.run_ended)) return {kOk, lane, kNothing, 0, 0};
  int64_t choice = -1;
  int64_t oldest = order::peek(&mine.written_ns);
  for (uint32_t i = 0; i < view.lane_count; ++i) {
    uint32_t owner = order::observe(&view.lanes[i].lease);
    if (i == lane || (owner != 0 && view.liveness.alive(owner))) continue;
    int64_t written = order::peek(&view.lanes[i].written_ns);
    if (written > oldest || (choice >= 0 && written == oldest)) continue;
    choice = i;
    oldest = written;
  }
  if (choice < 0) return {kOk, lane, kNothing, 0, 0};
  uint32_t owner = order::observe(&view.lanes[choice].lease);
  if (owner != 0 && view.liveness.alive(owner)) return {kOk, lane, kNothing, 0, 0};
  if (!order::claim(&view.lanes[choice].lease, owner, view.token)) return {kOk, lane, kNothing, 0, 0};
  stopping::at(stopping::kLeased);
  give_back_lane(view, lane);
  return {kOk, choice, kNothing, 0, 0};
}

// The lane's newest record, if the caller wrote it. value: its slot, or -1.
inline Outcome newest_record(const View& view, uint32_t lane_index, int64_t* generation, int64_t deadline_ns) {
  Held held(view, view.lock_of(lane_index), deadline_ns);
  if (!held) return blocked_on(view.lock_kind(), held.who());
  const LaneBlock& lane = view.lanes[lane_index];
  int64_t head = order::peek(&lane.head);
  if (!is_ticket(head)) return {kCorrupt, 0, kNothing, 0, 0};
  if (lane.last_writer != view.token || head <= order::peek(&lane.floor)) return {kOk, -1, kNothing, 0, 0};
  int64_t slot = lane_index * view.lane_capacity + (head - 1) % view.lane_capacity;
  *generation = static_cast<int64_t>(word_generation(order::observe(&view.words[slot]))) - 1;
  return {kOk, slot, kNothing, 0, 0};
}

// Holds the locks of some lanes, all or none.
class SomeLanes {
 public:
  SomeLanes(const View& view, const std::vector<uint32_t>& lanes, int64_t deadline_ns) : view_(view), lanes_(lanes) {
    for (;;) {
      while (held_ < lanes_.size() && try_lock(view_.lanes[lanes_[held_]].lock, view_.token)) ++held_;
      if (held_ == lanes_.size()) return;
      LockBlock& blocked = view_.lanes[lanes_[held_]].lock;
      release_all();
      Held held(view_, blocked, deadline_ns);  // wait for the one in the way, repair it, start again
      if (!held) {
        who_ = held.who();
        return;
      }
    }
  }
  ~SomeLanes() { release_all(); }
  SomeLanes(const SomeLanes&) = delete;
  SomeLanes& operator=(const SomeLanes&) = delete;
  explicit operator bool() const { return held_ == lanes_.size(); }
  uint32_t who() const { return who_; }

 private:
  void release_all() {
    while (held_ > 0) release(view_.lanes[lanes_[--held_]].lock);
  }

  const View& view_;
  const std::vector<uint32_t>& lanes_;
  size_t held_ = 0;
  uint32_t who_ = 0;
};

// `empty` for some lanes: rows that were written still count. Of a buffer with consumption all lanes are emptied or none.
inline Outcome empty_lanes(const View& view, const std::vector<uint32_t>& lanes, int64_t deadline_ns) {
  if (view.has(kConsumption)) return {kCorrupt, 0, kNothing, 0, 0};
  Held outer(view, view.control->empty_lock, deadline_ns);
  if (!outer) return blocked_on(kEmptyLock, outer.who());
  if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
  for (uint32_t lane : lanes)
    if (!is_ticket(order::peek(&view.lanes[lane].head))) return {kCorrupt, 0, kNothing, 0, 0};
  if (!view.has(kOneLock)) {
    SomeLanes held(view, lanes, deadline_ns);
    if (!held) return blocked_on(kLaneLock, held.who());
    for (uint32_t lane : lanes) empty_lane(view, view.lanes[lane], false);
    return {};
  }
  Held held(view, view.control->control_lock, deadline_ns);
  if (!held) return blocked_on(kControlLock, held.who());
  {
    Disagreeing disagreeing(view);
    for (uint32_t lane : lanes) {
      empty_lane(view, view.lanes[lane], false);
      if (!view.has(kPriorities)) continue;
      std::vector<int64_t> slots(view.lane_capacity);
      std::iota(slots.begin(), slots.end(), lane * view.lane_capacity);
      clear_leaves(view, slots);
    }
  }
  held.let_go();
  return {kOk, 0, kNothing, 0, ring_room(view)};
}

}  // namespace shmrb
