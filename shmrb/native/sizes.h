// How many records there are. Words are the truth; what stands in counters is a hint that is counted anew after a death.
#pragma once

#include <algorithm>
#include <vector>

#include "slots.h"

namespace shmrb {

// Rows ever reserved in a lane. `empty` moves floor, offset and head one after the other, by a journal whose second entry
// is the offset: while floor > head that entry tells whether the offset has moved already.
inline int64_t lane_rows(const LaneBlock& lane) {
  for (;;) {
    auto head = static_cast<uint64_t>(order::observe(&lane.head));
    auto offset = static_cast<uint64_t>(order::observe(&lane.written_offset));
    auto floor = static_cast<uint64_t>(order::observe(&lane.floor));
    if (static_cast<int64_t>(floor) <= static_cast<int64_t>(head)) return static_cast<int64_t>(head + offset);
    bool moved = offset == order::observe(&lane.journal.entries[1].value);
    if (static_cast<uint64_t>(order::observe(&lane.head)) == head)
      return static_cast<int64_t>((moved ? floor : head) + offset);
  }
}

// Rows ever reserved, whatever became of them.
inline int64_t reserved_rows(const View& view) {
  uint64_t rows = 0;
  for (uint32_t i = 0; i < view.lane_count; ++i) rows += static_cast<uint64_t>(lane_rows(view.lanes[i]));
  return static_cast<int64_t>(rows);
}

// Rows that clients have reserved and not yet published.
struct Flight {
  int64_t rows = 0;            // of living clients
  bool dead_on_board = false;  // one died over slots that nobody has recovered: only a count of the words is true

  explicit Flight(const View& view) {
    uint32_t high = order::observe(&view.control->clients_high);
    for (uint32_t slot = 0; slot < high && slot < view.max_clients; ++slot) {
      int64_t flying = order::peek(&view.clients[slot].in_flight);
      if (flying <= 0 && order::peek(&view.clients[slot].changing) == 0) continue;
      if (byte_state(view.liveness.probe, slot) == ByteState::kFree) {
        dead_on_board = true;
      } else if (flying > 0) {
        rows += flying;
      }
    }
  }
};

// REQUIRES: the control lock is held. These slots hold no record to consume.
inline void lose_slots(const View& view, const std::vector<int64_t>& slots) {
  if (slots.empty()) return;
  Disagreeing disagreeing(view);
  for (int64_t slot : slots) view.consumption().lose(slot);
}

// REQUIRES: the lane's lock is held, so that no writer fills a hole meanwhile.
inline void recount_holes(const View& view, uint32_t lane) {
  LaneBlock& block = view.lanes[lane];
  order::swap(&block.holes_stale, 0u);
  int64_t first = lane * view.lane_capacity;
  int64_t live = Window::of(block).tickets(view.lane_capacity);
  int64_t holes = 0;
  std::vector<int64_t> without_record;  // a slot that holds no record keeps no mass
  std::vector<int64_t> to_lose;         // and nobody may take it
  for (int64_t i = 0; i < live; ++i) {
    if (!word_void(order::peek(&view.words[first + i]))) continue;
    ++holes;
    if (view.has(kPriorities) && view.tree.leaf(first + i).mass > 0) without_record.push_back(first + i);
    if (view.has(kConsumption)) to_lose.push_back(first + i);
  }
  order::put(&block.holes, holes);
  clear_leaves(view, without_record);
  lose_slots(view, to_lose);
}

// Counts holes anew where somebody voided a slot. A lane whose lock is taken keeps its old count for this look.
inline void settle_holes(const View& view, bool holds_lock) {
  for (uint32_t lane = 0; lane < view.lane_count; ++lane) {
    if (!order::observe(&view.lanes[lane].holes_stale) || !view.acts()) continue;
    if (holds_lock) {
      recount_holes(view, lane);
    } else if (try_lock(view.lock_of(lane), view.token)) {
      recount_holes(view, lane);
      release(view.lock_of(lane));
    }
  }
}

// Does some lane's count of holes wait for somebody to count anew?
inline bool holes_are_doubted(const View& view) {
  for (uint32_t lane = 0; lane < view.lane_count; ++lane)
    if (order::observe(&view.lanes[lane].holes_stale)) return true;
  return false;
}

// Records under live tickets: those in flight included, holes not. With consumption those that are not consumed.
inline int64_t live_records(const View& view) {
  if (view.has(kConsumption)) return view.consumption().members() + view.consumption().held();
  int64_t records = 0;
  for (uint32_t i = 0; i < view.lane_count; ++i) {
    const LaneBlock& lane = view.lanes[i];
    int64_t tickets = Window::of(lane).tickets(view.lane_capacity);
    int64_t holes = order::peek(&lane.holes);
    if (holes < 0) holes = 0;
    records += tickets > holes ? tickets - holes : 0;
  }
  return records;
}

// Live slots that a reservation under way has marked: their records are gone, and no ticket replaces them yet.
inline int64_t overwritten_slots(const View& view) {
  int64_t slots = 0;
  for (uint32_t i = 0; i < view.lane_count; ++i) {
    const LaneBlock& lane = view.lanes[i];
    int64_t marked = order::observe(&lane.marked);
    Window window = Window::of(lane);
    if (!is_ticket(window.head) || marked <= window.head || order::peek(&view.lock_of(i).word) == 0) continue;
    int64_t count = std::min(marked - window.head, view.lane_capacity);
    slots += std::max<int64_t>(0, window.tickets(view.lane_capacity) + count - view.lane_capacity);
  }
  return slots;
}

// Records that are live and whole, by looking at every word. With consumption those that may be drawn.
inline int64_t count_whole(const View& view) {
  int64_t records = 0;
  for (uint32_t lane = 0; lane < view.lane_count; ++lane) {
    int64_t first = lane * view.lane_capacity;
    int64_t tickets = Window::of(view.lanes[lane]).tickets(view.lane_capacity);
    for (int64_t i = 0; i < tickets; ++i) {
      bool counts = !view.has(kConsumption) || view.consumption().may_be_drawn(first + i);
      records += counts && word_whole(order::peek(&view.words[first + i]));
    }
  }
  return records;
}

}  // namespace shmrb
