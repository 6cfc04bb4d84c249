// Writing records: reserve under the lane's lock (claim, mark, move the head), copy outside it, publish.
//
// Killed before the marks: the old records stand. Killed after them: the records being written and those they were
// replacing are void, nothing else. Once the first slot is marked a call neither waits, nor times out, nor returns early.
#pragma once

#include "refill.h"

namespace shmrb {

// A writer that died between its first mark and the head left busy slots that head does not count. REQUIRES: the lane's
// lock is held; then whoever marked them is dead.
inline void settle_marked(const View& view, LaneBlock& lane, int64_t first_slot, int64_t head) {
  int64_t marked = order::peek(&lane.marked);
  for (int64_t ticket = head; ticket < marked && ticket - head < view.lane_capacity; ++ticket) {
    int64_t slot = first_slot + ticket % view.lane_capacity;
    uint32_t owner = order::peek(&view.owners[slot]);
    if (owner != 0 && !view.liveness.alive(owner) && claim_slot(view, slot) == 0) free_slot(view, slot);
  }
  if (marked > head) order::put(&lane.marked, head);
}

// Claims `count` slots of a lane from `position` on. 0, or the living owner of `*at`; then nothing is claimed.
inline uint32_t claim_range(const View& view, int64_t first_slot, int64_t position, int64_t count, int64_t* at) {
  for (int64_t i = 0; i < count; ++i) {
    int64_t slot = first_slot + (position + i) % view.lane_capacity;
    uint32_t owner = claim_slot(view, slot);
    if (owner == 0) continue;
    for (int64_t k = 0; k < i; ++k) free_slot(view, first_slot + (position + k) % view.lane_capacity);
    *at = slot;
    return owner;
  }
  return 0;
}

// REQUIRES: the lane's lock is held and the slots are claimed. Marks, stamps runs, moves the head. `rows`: those that take
// tickets; the whole write has those of `refill` before them.
inline void reserve(const View& view, LaneBlock& lane, int64_t first_slot, int64_t head, const Rows& rows,
                    const Refill& refill, uint32_t flags) {
  int64_t floor = order::peek(&lane.floor);
  int64_t position = head % view.lane_capacity;
  Disagreeing disagreeing(view);
  Changing changing(view);
  order::put(&lane.marked, head + rows.count);
  int64_t filled_holes = refill.mark(view);
  for (int64_t i = 0; i < rows.count; ++i) {
    int64_t slot = first_slot + (position + i) % view.lane_capacity;
    bool emptied = head + i - view.lane_capacity < floor;  // the lane's first lap over its floor
    uint64_t word = order::peek(&view.words[slot]);
    filled_holes += word_void(word) && !emptied;
    order::publish(&view.words[slot], make_word(next_generation(view, word, emptied), 0, kBusy64));
    if (i == 0 && refill.is_empty()) stopping::at(stopping::kMidMark);
  }
  order::before_payload();
  refill.stamp_runs(view, lane);
  if (rows.count) stamp_runs(view, lane, first_slot, head, rows, flags);
  if (view.has(kPriorities)) {
    refill.enter_leaves(view, first_slot);
    if (rows.count) enter_leaves(view, first_slot, position, rows.count, rows.priorities);
  }
  stopping::at(stopping::kReserved);
  if (filled_holes) order::put(&lane.holes, lane.holes > filled_holes ? lane.holes - filled_holes : 0);
  order::put(&lane.written_ns, coarse_ns(CLOCK_REALTIME_COARSE));
  // Before the head: who looks in between sees less, never more.
  order::bump(&view.me()->in_flight, refill.in_flight() + rows.count);
  if (refill.is_empty()) {
    order::publish(&lane.head, head + rows.count);
  } else {
    refill.count(view, lane, head + rows.count);
  }
  // After the rows that filled slots, so that records arrive in the order of the input.
  for (int64_t i = 0; view.has(kConsumption) && i < rows.count; ++i)
    view.consumption().enter(first_slot + (position + i) % view.lane_capacity);
  stopping::at(stopping::kHeadMoved);
}

// Appends rows.count <= max(1, lane_capacity / 2) records to a lane. Where writes fill consumed slots these come first,
// oldest consumption first; the other rows take tickets. value: the ticket of the first row that took one.
inline Outcome append(const View& view, uint32_t lane_index, const Rows& rows, uint32_t flags, int64_t deadline_ns) {
  LaneBlock& lane = view.lanes[lane_index];
  int64_t first_slot = lane_index * view.lane_capacity;
  for (int64_t i = 0; rows.priorities && i < rows.count; ++i)
    if (!priority_is_possible(priorities_of(view), rows.priorities[i])) return {kRefused, i, kNothing, 0, 0};
  OwnerNap nap;
  int64_t head;
  Refill refill(rows);
  Tail tail(view, rows);
  for (;;) {
    Held held(view, view.lock_of(lane_index), deadline_ns);
    if (!held) return blocked_on(view.lock_kind(), held.who());
    if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
    head = order::peek(&lane.head);
    if (!is_ticket(head)) return {kCorrupt, 0, kNothing, 0, 0};
    settle_marked(view, lane, first_slot, head);
    Admission admission = flags & kAdmitted ? Admission::kWithinLimits : may_insert(view, rows.count);
    if (admission == Admission::kRefused) return {kLimited, 0, kNothing, 0, 0};
    if (view.has(kRefills)) {
      settle_holes(view, true);
      refill.plan(view, head);
      tail.begin_at(refill.taken());
    }
    int64_t busy_slot = 0;
    uint32_t owner = refill.claim(view, &busy_slot);
    if (owner == 0) {
      owner = claim_range(view, first_slot, head % view.lane_capacity, tail.rows.count, &busy_slot);
      if (owner != 0) refill.unclaim(view);
    }
    if (owner == 0) {
      stopping::at(stopping::kClaimed);
      shut_inserts(view, admission);
      reserve(view, lane, first_slot, head, tail.rows, refill, flags);
      break;
    }
    held.let_go();
    if (monotonic_ns() >= deadline_ns) return blocked_on(kSlotOwner, owner);
    nap.rest(view, busy_slot, owner, deadline_ns);
  }
  order::before_payload();
  const Rows& ring = tail.rows;
  int64_t position = head % view.lane_capacity;
  int64_t before_wrap = view.lane_capacity - position < ring.count ? view.lane_capacity - position : ring.count;
  refill.copy(view);
  if (ring.count) copy_rows_in(view, ring, 0, first_slot + position, before_wrap);
  if (before_wrap < ring.count) copy_rows_in(view, ring, before_wrap, first_slot, ring.count - before_wrap);
  stopping::at(stopping::kBeforeCommit);
  refill.publish(view);
  for (int64_t i = 0; i < ring.count; ++i) {
    int64_t slot = first_slot + (position + i) % view.lane_capacity;
    if (ring.slots) ring.slots[i] = slot;
    publish_slot(view, slot);
    if (i == 0 && refill.is_empty()) stopping::at(stopping::kMidCommit);
  }
  order::bump(&view.me()->in_flight, -(refill.in_flight() + ring.count));
  stopping::at(stopping::kCommitted);
  order::put(&view.me()->duties, order::peek(&view.me()->duties) | 1u);
  view.count(kWriteCalls, 1);
  view.count(kRecordsWritten, rows.count);
  view.count(kOverwrittenInCall, refill.taken() - refill.in_flight());
  return {kOk, head, kNothing, 0, ring_records(view)};
}

// The limiter's answer for a call that will be written in several chunks.
inline Outcome admit(const View& view, int64_t rows, int64_t deadline_ns) {
  if (!limits_apply(view)) return {};
  Held held(view, view.control->control_lock, deadline_ns);
  if (!held) return blocked_on(kControlLock, held.who());
  Admission admission = may_insert(view, rows);
  if (admission == Admission::kRefused) return {kLimited, 0, kNothing, 0, 0};
  shut_inserts(view, admission);
  return {};
}

// Writes one record into a given slot without a ticket: head and ring order stay, the slot gets a new generation.
inline Outcome refill(const View& view, int64_t slot, const Rows& row, int64_t deadline_ns) {
  OwnerNap nap;
  Changing changing(view);
  while (uint32_t owner = claim_slot(view, slot)) {
    if (monotonic_ns() >= deadline_ns) return blocked_on(kSlotOwner, owner);
    nap.rest(view, slot, owner, deadline_ns);
  }
  stopping::at(stopping::kClaimed);
  if (!view.is_ready()) {
    free_slot(view, slot);
    return {kDead, 0, kNothing, 0, 0};
  }
  uint64_t word = order::peek(&view.words[slot]);
  uint64_t generation = next_generation(view, word, !ticket_is_live(view, slot));
  order::publish(&view.words[slot], make_word(generation, 0, kBusy64));
  stopping::at(stopping::kReserved);
  order::before_payload();
  copy_rows_in(view, row, 0, slot, 1);
  order::put(&view.runs[slot], kRunFirst | kRunLast);
  stopping::at(stopping::kBeforeCommit);
  publish_slot(view, slot);
  stopping::at(stopping::kCommitted);
  doubt_holes(view, slot);
  view.count(kWriteCalls, 1);
  view.count(kRecordsWritten, 1);
  return {kOk, static_cast<int64_t>(generation) - 1, kNothing, 0, ring_records(view)};
}

// The handle's trajectory ends with the last record it wrote: the lane's next record starts another run.
inline Outcome end_trajectory(const View& view, uint32_t lane_index, int64_t deadline_ns) {
  Held held(view, view.lock_of(lane_index), deadline_ns);
  if (!held) return blocked_on(view.lock_kind(), held.who());
  if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
  LaneBlock& lane = view.lanes[lane_index];
  int64_t head = order::peek(&lane.head);
  if (!is_ticket(head)) return {kCorrupt, 0, kNothing, 0, 0};
  if (lane.last_writer != view.token || head == 0 || head <= order::peek(&lane.floor)) return {};
  int64_t newest = lane_index * view.lane_capacity + (head - 1) % view.lane_capacity;
  order::put(&view.runs[newest], order::peek(&view.runs[newest]) | kRunLast);
  order::put(&lane.run_ended, 1u);
  return {};
}

}  // namespace shmrb
