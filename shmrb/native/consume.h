// Drawing records that are gone after so many draws: take, read, finish. Each is a call of its own; Python makes them in
// turn, so that every sample unit and every sampler that is known here can be combined.
#pragma once

#include "draw.h"

namespace shmrb {

enum class TakeKind : int { kUniform = 0, kOldestFirst = 1, kNewestFirst = 2 };

// REQUIRES: the control lock is held. The limiter's credit for records that move, and that they have moved, in one step.
inline void move_credit(const View& view, int64_t samples, Moving state) {
  uint64_t* moving = view.consumption().moving();
  if (samples == 0) return order::publish(moving, uint64_t{state});
  LimiterBlock& limiter = view.control->limiter;
  change(view, view.control->journal,
         {{&limiter.samples, static_cast<uint64_t>(order::peek(&limiter.samples) + samples)}, {moving, state}});
}

// REQUIRES: the control lock is held. Gives taken records back, and what the limiter was charged for them.
inline void return_records(const View& view, const std::vector<int64_t>& slots) {
  if (slots.empty()) return;
  Disagreeing disagreeing(view);
  Consumption consumption = view.consumption();
  order::publish(consumption.moving(), uint64_t{kAreTaken});
  int64_t samples = 0;
  for (int64_t slot : slots) {
    samples += consumption.cost(slot);
    consumption.mark(slot);
  }
  move_credit(view, view.has(kLimiter) ? -samples : 0, kNotTaken);
  for (size_t i = 0; i < slots.size(); ++i) {
    consumption.give_back(slots[i]);
    if (i == 0) stopping::at(stopping::kMidReturn);
  }
  order::publish(consumption.moving(), uint64_t{kNothingMoves});
}

// REQUIRES: the control lock is held. Takes records for this client; a death in the middle takes none.
inline void take_records(const View& view, const std::vector<int64_t>& slots, uint32_t cost) {
  Consumption consumption = view.consumption();
  order::publish(consumption.moving(), uint64_t{kNotTaken});
  for (size_t i = 0; i < slots.size(); ++i) {
    consumption.take(slots[i], view.token, cost);
    if (i == 0) stopping::at(stopping::kMidTake);
  }
  move_credit(view, static_cast<int64_t>(cost) * static_cast<int64_t>(slots.size()), kAreTaken);
  for (int64_t slot : slots) consumption.unmark(slot);
  order::publish(consumption.moving(), uint64_t{kNothingMoves});
}

// REQUIRES: the control lock is held. Gives back what clients that are gone had taken. `look`: even if nobody said that
// one is gone. Returns how many records that were.
inline int64_t settle_holders(const View& view, bool look) {
  ConsumptionBlock& block = view.control->consumption;
  Consumption consumption = view.consumption();
  bool told = order::observe(&block.holders_stale) != 0;
  if (!told && !(look && consumption.held() > 0)) return 0;
  std::vector<int64_t> left;
  uint32_t known = 0;
  bool known_to_live = false;
  for (int64_t slot = 0; slot < view.capacity; ++slot) {
    uint32_t holder = consumption.holder(slot);
    if (holder == 0) continue;
    if (holder != known) {
      known = holder;
      known_to_live = view.liveness.alive(holder);
    }
    if (!known_to_live) left.push_back(slot);
  }
  return_records(view, left);
  if (told) order::publish(&block.holders_stale, uint64_t{0});
  return static_cast<int64_t>(left.size());
}

// What stands in the way of a draw that found too little.
struct InTheWay {
  int64_t slot = -1;
  uint32_t owner = 0;
};

// REQUIRES: the control lock is held. May this member be handed out? One whose record died leaves the members.
inline bool is_takeable(const View& view, int64_t slot, InTheWay* busy) {
  uint64_t word = order::observe(&view.words[slot]);
  if (word_busy(word)) {
    uint32_t owner = resolve_busy(view, slot);
    if (owner != 0) *busy = {slot, owner};
    word = order::observe(&view.words[slot]);
  }
  if (word_whole(word) && ticket_is_live(view, slot)) return true;
  if (word_void(word)) view.consumption().lose(slot);
  return false;
}

// A part of Fisher and Yates' shuffle: each choice is uniform over the members that were not looked at.
inline void choose_uniformly(const View& view, Random& random, int64_t count, std::vector<int64_t>& chosen,
                             InTheWay* busy) {
  Consumption consumption = view.consumption();
  int64_t begin = 0, end = consumption.members();
  while (begin < end && static_cast<int64_t>(chosen.size()) < count) {
    int64_t position = begin + static_cast<int64_t>(random.below(end - begin));
    int64_t slot = consumption.member(position);
    if (slot >= 0 && is_takeable(view, slot, busy)) {
      chosen.push_back(slot);
      consumption.swap_members(begin++, position);
    } else {
      end = std::min(end, consumption.members());  // if it died the last member has its place
      if (slot < 0 || consumption.may_be_drawn(slot)) consumption.swap_members(position, --end);
    }
  }
}

inline void choose_in_order(const View& view, bool oldest_first, int64_t count, std::vector<int64_t>& chosen,
                            InTheWay* busy) {
  Consumption consumption = view.consumption();
  int64_t slot = oldest_first ? consumption.first() : consumption.last();
  for (int64_t steps = 0; slot >= 0 && steps < view.capacity && static_cast<int64_t>(chosen.size()) < count; ++steps) {
    int64_t next = oldest_first ? consumption.after(slot) : consumption.before(slot);
    if (consumption.may_be_drawn(slot) && is_takeable(view, slot, busy)) chosen.push_back(slot);
    slot = next;
  }
}

struct Wish {
  TakeKind kind;
  int64_t count;
  uint32_t cost;  // what the limiter is charged for each record
};

// Takes records that may be drawn, fewer than wished for if there are fewer; value: how many. The caller reads them and
// ends the take with each. Records that are being written or changed are passed over, and waited for when there are no
// others.
inline Outcome take(const View& view, Random random, const Wish& wish, int64_t* slots, int64_t* generations,
                    int64_t deadline_ns) {
  if (!view.has(kConsumption)) return {kCorrupt, 0, kNothing, 0, 0};
  Consumption consumption = view.consumption();
  std::vector<int64_t> chosen;
  uint64_t wake = 0;
  OwnerNap nap;
  for (;;) {
    Held held(view, view.control->control_lock, deadline_ns);
    if (!held) return blocked_on(kControlLock, held.who());
    if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
    settle_holes(view, true);
    int64_t returned = settle_holders(view, consumption.members() == 0);
    if (returned > wish.count) wake = ring_records(view);  // for others too
    InTheWay busy;
    Disagreeing disagreeing(view);
    if (wish.kind == TakeKind::kUniform) {
      choose_uniformly(view, random, wish.count, chosen, &busy);
    } else {
      choose_in_order(view, wish.kind == TakeKind::kOldestFirst, wish.count, chosen, &busy);
    }
    if (chosen.empty() && busy.slot >= 0) {
      held.let_go();
      if (monotonic_ns() >= deadline_ns) return {kAgain, 0, kSlotOwner, busy.owner, wake};
      nap.rest(view, busy.slot, busy.owner, deadline_ns);
      continue;
    }
    auto cost = static_cast<int64_t>(wish.cost) * static_cast<int64_t>(chosen.size());
    bool limited = limits_apply(view);
    // While others hold records, what they end or give back is what there will be to draw.
    bool opens = consumption.pending() == 0 && (chosen.empty() || in_want(view));
    if (chosen.empty() && !limited) return {kEmpty, 0, kNothing, 0, wake};
    if (chosen.empty() || (limited && !may_sample(view, cost)))
      return {kLimited, 0, kNothing, 0, wake | (opens ? open_inserts(view) : 0)};
    take_records(view, chosen, limited ? wish.cost : 0u);
    for (size_t i = 0; i < chosen.size(); ++i) {
      slots[i] = chosen[i];
      generations[i] = static_cast<int64_t>(word_generation(order::observe(&view.words[chosen[i]]))) - 1;
    }
    break;
  }
  stopping::at(stopping::kTaken);
  count_sample(view, static_cast<int64_t>(chosen.size()), 0);
  if (view.has(kLimiter)) wake |= ring_room(view);
  return {kOk, static_cast<int64_t>(chosen.size()), kNothing, 0, wake};
}

// Does this client hold that record?
inline bool has_taken(const View& view, int64_t slot, int64_t generation) {
  if (!view.in_range(slot) || view.consumption().holder(slot) != view.token) return false;
  uint64_t word = order::observe(&view.words[slot]);
  return static_cast<int64_t>(word_generation(word)) - 1 == generation && holds_record(view, slot, word);
}

// Finishes takes, or with `back` undoes them. Rows that this client does not hold are left alone; `verdicts`, if wanted,
// says which those are not. value: rows ended.
inline Outcome end_takes(const View& view, bool back, int64_t count, const int64_t* index, const int64_t* generation,
                         uint8_t* verdicts, int64_t deadline_ns) {
  if (!view.has(kConsumption)) return {kCorrupt, 0, kNothing, 0, 0};
  Consumption consumption = view.consumption();
  Held held(view, view.control->control_lock, deadline_ns);
  if (!held) return blocked_on(kControlLock, held.who());
  if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
  int64_t ended = 0;
  {
    Disagreeing disagreeing(view);
    std::vector<int64_t> returned;
    for (int64_t i = 0; i < count; ++i) {
      bool mine = has_taken(view, index[i], generation[i]);
      if (verdicts) verdicts[i] = mine;
      if (!mine) continue;
      ++ended;
      if (back) {
        returned.push_back(index[i]);
      } else {
        consumption.finish(index[i]);
        if (ended == 1) stopping::at(stopping::kMidFinish);
      }
    }
    return_records(view, returned);
  }
  held.let_go();
  return {kOk, ended, kNothing, 0, ended == 0 ? 0 : back ? ring_records(view) : ring_room(view)};
}

// Undoes whatever this client has taken, as when it leaves. False if the lock could not be had in time.
inline bool give_all_back(const View& view, int64_t deadline_ns) {
  if (view.consumption().held() == 0) return true;
  std::vector<int64_t> slots, generations;
  for (int64_t slot = 0; slot < view.capacity; ++slot) {
    if (view.consumption().holder(slot) != view.token) continue;
    slots.push_back(slot);
    generations.push_back(static_cast<int64_t>(word_generation(order::observe(&view.words[slot]))) - 1);
  }
  if (slots.empty()) return true;
  auto count = static_cast<int64_t>(slots.size());
  return end_takes(view, true, count, slots.data(), generations.data(), nullptr, deadline_ns).status == kOk;
}

}  // namespace shmrb
