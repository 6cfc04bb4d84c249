// What happens to a buffer as a whole, and to its clients: empty, leases, attaching, leaving, recovering the dead.
#pragma once

#include <string>

#include "consume.h"

namespace shmrb {

// Tries every lane's lock in turn and holds all or none: nobody waits for a lock while holding another.
class AllLanes {
 public:
  AllLanes(const View& view, int64_t deadline_ns) : view_(view) {
    for (;;) {
      uint32_t blocked = take_all();
      if (blocked == view.lane_count) return;
      Held held(view, view.lanes[blocked].lock, deadline_ns);  // wait for the one in the way, repair it, start again
      if (!held) {
        who_ = held.who();
        return;
      }
    }
  }
  ~AllLanes() { release_first(held_); }
  AllLanes(const AllLanes&) = delete;
  AllLanes& operator=(const AllLanes&) = delete;
  explicit operator bool() const { return held_ == view_.lane_count; }
  uint32_t who() const { return who_; }

 private:
  uint32_t take_all() {
    for (held_ = 0; held_ < view_.lane_count; ++held_) {
      if (!try_lock(view_.lanes[held_].lock, view_.token)) {
        uint32_t blocked = held_;
        release_first(held_);
        held_ = 0;
        return blocked;
      }
    }
    return view_.lane_count;
  }
  void release_first(uint32_t count) {
    while (count > 0) release(view_.lanes[--count].lock);
  }

  const View& view_;
  uint32_t held_ = 0;
  uint32_t who_ = 0;
};

// REQUIRES: the lane's lock is held, its head is a ticket. Moves floor and head to the next multiple of its capacity.
inline void empty_lane(const View& view, LaneBlock& lane, bool reset_write_count) {
  auto head = static_cast<uint64_t>(order::peek(&lane.head));
  auto lap = static_cast<uint64_t>(view.lane_capacity);
  uint64_t ahead = (head + lap - 1) / lap * lap;
  uint64_t written = head + static_cast<uint64_t>(order::peek(&lane.written_offset));
  Store floor{&lane.floor, ahead};
  Store rows{&lane.written_offset, (reset_write_count ? 0 : written) - ahead};
  Store holes{&lane.holes, 0};
  Store top{&lane.head, ahead};
  if (!reset_write_count || !view.has(kLimiter)) return change(view, lane.journal, {floor, rows, holes, top});
  // What the limiter counts stays as it is until `empty` zeroes it after the last lane: a death in between must not leave
  // samples without their inserts.
  LimiterBlock& limiter = view.control->limiter;
  change(view, lane.journal,
         {floor, rows, holes,
          {&limiter.uncounted, static_cast<uint64_t>(order::peek(&limiter.uncounted)) - written},
          {&limiter.lift_mark, static_cast<uint64_t>(order::peek(&limiter.lift_mark)) - written},
          top});
}

// O(lanes): no slot is touched. Records in flight count as before it.
inline Outcome empty(const View& view, bool reset_write_count, int64_t deadline_ns) {
  Held outer(view, view.control->empty_lock, deadline_ns);
  if (!outer) return blocked_on(kEmptyLock, outer.who());
  if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
  auto empty_all = [&]() -> Outcome {
    for (uint32_t i = 0; i < view.lane_count; ++i)
      if (!is_ticket(order::peek(&view.lanes[i].head))) return {kCorrupt, 0, kNothing, 0, 0};
    for (uint32_t i = 0; i < view.lane_count; ++i) {
      settle_marked(view, view.lanes[i], i * view.lane_capacity, order::peek(&view.lanes[i].head));
      empty_lane(view, view.lanes[i], reset_write_count);
    }
    return {};
  };
  if (!view.has(kOneLock)) {
    AllLanes lanes(view, deadline_ns);
    if (!lanes) return blocked_on(kLaneLock, lanes.who());
    return empty_all();
  }
  Held held(view, view.control->control_lock, deadline_ns);
  if (!held) return blocked_on(kControlLock, held.who());
  {
    Disagreeing disagreeing(view);
    if (Outcome refused = empty_all(); refused.status != kOk) return refused;
    if (view.has(kPriorities)) empty_tree(view);
    if (view.has(kConsumption)) view.consumption().clear();
  }
  LimiterBlock& limiter = view.control->limiter;
  if (reset_write_count && view.has(kLimiter))
    change(view, view.control->journal,
           {{&limiter.samples, 0}, {&limiter.uncounted, 0}, {&limiter.lift_mark, 0}, {&limiter.opened_by, 0}});
  held.let_go();
  return {kOk, 0, kNothing, 0, ring_room(view)};
}

struct Limits {
  bool enabled;
  int64_t min_size;
  double samples_per_insert, min_diff, max_diff;
};

inline Outcome set_limits(const View& view, const Limits& limits, int64_t deadline_ns) {
  Held held(view, view.control->control_lock, deadline_ns);
  if (!held) return blocked_on(kControlLock, held.who());
  if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
  LimiterBlock& limiter = view.control->limiter;
  change(view, view.control->journal,
         {{&limiter.enabled, limits.enabled},
          {&limiter.min_size, static_cast<uint64_t>(limits.min_size)},
          {&limiter.samples_per_insert, bits_of(limits.samples_per_insert)},
          {&limiter.min_diff, bits_of(limits.min_diff)},
          {&limiter.max_diff, bits_of(limits.max_diff)}});
  held.let_go();
  return {kOk, 0, kNothing, 0, ring_room(view) | ring_records(view)};
}

// While lifted nothing is refused and nothing counts; what was written meanwhile is owed no samples afterwards.
inline Outcome lift_limits(const View& view, bool lifted, int64_t deadline_ns) {
  Held held(view, view.control->control_lock, deadline_ns);
  if (!held) return blocked_on(kControlLock, held.who());
  if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
  LimiterBlock& limiter = view.control->limiter;
  if (lifted && !limiter.lifted) {
    change(view, view.control->journal,
           {{&limiter.lift_mark, static_cast<uint64_t>(reserved_rows(view))}, {&limiter.lifted, 1}});
  } else if (!lifted && limiter.lifted) {
    int64_t preloaded = reserved_rows(view) - limiter.lift_mark;
    change(view, view.control->journal,
           {{&limiter.uncounted, static_cast<uint64_t>(limiter.uncounted + preloaded)}, {&limiter.lifted, 0}});
  }
  held.let_go();
  return {kOk, 0, kNothing, 0, ring_room(view) | ring_records(view)};
}

// Leases a lane, or with lane < 0 the free lane that was written least recently. value: the lane. kBusy: `who` has it.
inline Outcome lease_lane(const View& view, int64_t lane) {
  if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
  for (;;) {
    int64_t choice = lane;
    uint32_t in_the_way = 0;
    for (uint32_t i = 0; lane < 0 && i < view.lane_count; ++i) {
      uint32_t owner = order::observe(&view.lanes[i].lease);
      if (owner != 0 && view.liveness.alive(owner)) {
        in_the_way = owner;
      } else if (choice < 0 || order::peek(&view.lanes[i].written_ns) < order::peek(&view.lanes[choice].written_ns)) {
        choice = i;
      }
    }
    if (choice < 0) return {kBusy, 0, kNothing, in_the_way, 0};
    uint32_t owner = order::observe(&view.lanes[choice].lease);
    if (owner == view.token) return {kOk, choice, kNothing, 0, 0};
    if (owner != 0 && view.liveness.alive(owner)) {
      if (lane >= 0) return {kBusy, lane, kNothing, owner, 0};
      continue;
    }
    if (!order::claim(&view.lanes[choice].lease, owner, view.token)) continue;
    stopping::at(stopping::kLeased);
    return {kOk, choice, kNothing, 0, 0};
  }
}

inline void give_back_lane(const View& view, uint32_t lane) {
  uint32_t mine = view.token;
  order::claim(&view.lanes[lane].lease, mine, 0u);
}

// Finishes what any client that had this client slot before left behind. REQUIRES: the slot's byte is held by the caller
// and its epoch has moved past the dead client's, so every token of the slot but the caller's is provably dead.
inline int64_t recover_tenant(const View& view, uint32_t client) {
  auto dead = [&](uint32_t token) {
    token &= ~kWaitersBit;
    return token != 0 && token != view.token && token_slot(token) == client;
  };
  int64_t slots = 0;
  for (int64_t slot = 0; slot < view.capacity; ++slot) {
    if (!dead(order::peek(&view.owners[slot]))) continue;
    if (claim_slot(view, slot) == 0) {
      free_slot(view, slot);
      ++slots;
    }
  }
  int64_t soon = monotonic_ns() + 20'000'000;
  auto pass = [&](LockBlock& lock) {
    if (dead(order::peek(&lock.word))) Held taken_over(view, lock, soon);
  };
  pass(view.control->control_lock);
  pass(view.control->empty_lock);
  for (uint32_t i = 0; i < view.lane_count; ++i) {
    pass(view.lanes[i].lock);
    uint32_t lease = order::observe(&view.lanes[i].lease);
    if (dead(lease)) order::claim(&view.lanes[i].lease, lease, 0u);
  }
  if (view.has(kConsumption)) {
    order::publish(&view.control->consumption.holders_stale, uint64_t{1});
    if (Held held(view, view.control->control_lock, soon); held) settle_holders(view, false);
  }
  view.note(kClientsRecovered);
  return slots;
}

inline void retire_counters(const View& view, ClientBlock& block) {
  for (int i = 0; i < kCounters; ++i) order::bump(&view.control->retired[i], order::swap(&block.counters[i], uint64_t{0}));
}

// Clears a client's entry: nothing of it is left in the segment.
inline void clear_entry(const View& view, ClientBlock& block) {
  retire_counters(view, block);
  order::put(&block.in_flight, int64_t{0});
  order::put(&block.changing, 0u);
  order::put(&block.duties, 0u);
  order::put(&block.waiting_for, 0u);
  order::publish(&block.role, 0u);
}

// REQUIRES: the byte of `client` was just taken by this process. Gives the entry a new epoch, which makes whatever the
// last tenant held provably dead, and recovers it. Returns the token.
inline uint32_t open_entry(View& view, uint32_t client) {
  ClientBlock& block = view.clients[client];
  stopping::at(stopping::kByteTaken);
  uint32_t epoch = (order::peek(&block.epoch) + 1) & kEpochMask;
  if (epoch == 0) epoch = 1;
  order::publish(&block.epoch, epoch);
  view.token = make_token(epoch, client);
  stopping::at(stopping::kEpochMoved);
  uint32_t high = order::peek(&view.control->clients_high);
  while (high < client + 1 && !order::claim(&view.control->clients_high, high, client + 1)) {
  }
  if (order::observe(&block.role) != 0) {
    recover_tenant(view, client);
    stopping::at(stopping::kRecovered);
    clear_entry(view, block);
  }
  return view.token;
}

// Recovers every client whose byte is free but whose entry is not. Returns how many.
inline int64_t reap(const View& view, const char* live_lock) {
  int64_t dead = 0;
  uint32_t high = order::observe(&view.control->clients_high);
  for (uint32_t client = 0; client < high && client < view.max_clients; ++client) {
    if (order::observe(&view.clients[client].role) == 0) continue;
    if (byte_state(view.liveness.probe, client) != ByteState::kFree) continue;
    HeldByte byte;
    if (byte.take(live_lock, client) != 0) continue;  // somebody else reaps it, or it has a new tenant
    View stand_in = view;
    open_entry(stand_in, client);
    ++dead;
  }
  return dead;
}

// A count waits so long for the lock of a client that lives.
constexpr int64_t kRepairWithinNs = 20'000'000;

// Records that are live and whole. What dead clients had in flight is recovered first.
inline Outcome size(const View& view, const char* live_lock) {
  uint64_t wake = 0;
  if (view.acts() && Flight(view).dead_on_board && reap(view, live_lock) > 0)
    wake = ring_records(view) | ring_room(view);
  if (view.has(kConsumption) && view.acts() && order::observe(&view.control->control_lock.dirty)) {
    // Either it will be clean in a moment, or its owner died and the lists must be made anew first.
    Held held(view, view.control->control_lock, monotonic_ns() + kRepairWithinNs);
  }
  settle_holes(view, false);
  Flight flight(view);
  // Who may not write looks at every word instead: parameters are published in place, so their hint is never counted.
  bool hint_is_old = flight.dead_on_board || (!view.acts() && holes_are_doubted(view));
  int64_t known = view.has(kConsumption) ? view.consumption().members()
                                         : live_records(view) - overwritten_slots(view);
  int64_t records = hint_is_old ? count_whole(view) : known - flight.rows;
  return {kOk, records > 0 ? records : 0, kNothing, 0, wake};
}

// Rows ever written, without those in flight.
inline int64_t write_count(const View& view) {
  int64_t rows = reserved_rows(view) - Flight(view).rows;
  return rows > 0 ? rows : 0;
}

// Recovers every dead client, and what tokens of unknown clients hold, as after an unclean start. Returns slots freed.
inline int64_t recover_buffer(const View& view, const char* live_lock) {
  reap(view, live_lock);
  for (uint32_t lane = 0; lane < view.lane_count; ++lane) order::publish(&view.lanes[lane].holes_stale, 1u);
  int64_t freed = 0;
  for (int64_t slot = 0; slot < view.capacity; ++slot) {
    uint32_t owner = order::peek(&view.owners[slot]);
    if (owner == 0 || owner == view.token || view.liveness.alive(owner)) continue;
    if (claim_slot(view, slot) == 0) {
      free_slot(view, slot);
      ++freed;
    }
  }
  for (uint32_t lane = 0; lane < view.lane_count; ++lane) {
    uint32_t lease = order::observe(&view.lanes[lane].lease);
    if (lease != 0 && !view.liveness.alive(lease)) order::claim(&view.lanes[lane].lease, lease, 0u);
  }
  settle_holes(view, false);
  return freed;
}

// Makes anew what follows from the words, whatever it says: start counts, the priority tree, consumption's lists.
inline Outcome rebuild(const View& view, int64_t deadline_ns) {
  for (uint32_t lane = 0; lane < view.lane_count; ++lane) {
    LockBlock& lock = view.lock_of(lane);
    Held held(view, lock, deadline_ns);
    if (!held) return blocked_on(view.lock_kind(), held.who());
    view.starts.recount(lane, 0, view.lane_capacity);
    if (lane > 0 && view.has(kOneLock)) continue;
    order::publish(&lock.dirty, 1u);
    if (view.has(kPriorities)) rebuild_tree(view);
    if (view.has(kConsumption)) rebuild_consumption(view);
    order::publish(&lock.dirty, 0u);
  }
  return {};
}

}  // namespace shmrb
