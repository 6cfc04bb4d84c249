// Prioritised draws and priority updates. A draw walks the tree under the control lock and reads each slot's word there;
// the gathered record must show the same word, or it is drawn again. Draws are independent: batches come out in no order.
#pragma once

#include "read.h"
#include "update.h"

namespace shmrb {

constexpr int kRoundsUnderLock = 8;

// One row's draw while the lock is held: a whole record, or none.
inline bool accept_draw(const View& view, const Batch& batch, Scratch& scratch, uint32_t row, double* masses) {
  int64_t slot = batch.index[row];
  uint64_t word = order::observe(&view.words[slot]);
  if (!word_whole(word) || !ticket_is_live(view, slot)) return false;
  scratch.words[row] = word;
  masses[row] = view.tree.leaf(slot).mass;
  return true;
}

// A draw that landed on a slot in a dead client's hands frees it, so that it loses its mass. The living owner otherwise.
inline uint32_t resolve_busy(const View& view, int64_t slot) {
  uint32_t owner = order::peek(&view.owners[slot]);
  if (owner == 0 || view.liveness.alive(owner)) return owner;
  if (claim_slot(view, slot) == 0) free_slot(view, slot);
  return 0;
}

// REQUIRES: the control lock is held. Draws all pending rows; those that found no whole record stay in `failed`.
inline Outcome draw_by_mass(const View& view, Random& random, const Batch& batch, Scratch& scratch, double* masses,
                            float* least, std::vector<uint32_t>& failed) {
  settle_holes(view, true);
  double total = view.tree.total();
  if (!(total > 0)) return {live_records(view) > 0 ? kNoMass : kEmpty, 0, kNothing, 0, 0};
  *least = view.tree.least();
  std::vector<double> targets;
  std::vector<int64_t> slots;
  std::vector<uint32_t> open = scratch.pending;
  uint32_t in_the_way = 0;
  for (int round = 0; round < kRoundsUnderLock && !open.empty(); ++round) {
    targets.resize(open.size());
    slots.resize(open.size());
    for (double& target : targets) target = random.unit() * total;
    view.tree.locate(targets.data(), static_cast<int64_t>(open.size()), slots.data());
    failed.clear();
    for (size_t k = 0; k < open.size(); ++k) {
      batch.index[open[k]] = slots[k];
      if (accept_draw(view, batch, scratch, open[k], masses)) continue;
      in_the_way = resolve_busy(view, slots[k]);
      failed.push_back(open[k]);
    }
    open = failed;
  }
  failed = open;
  return {kOk, failed.empty() ? 0 : batch.index[failed[0]], kNothing, in_the_way, 0};
}

// Draws with probability mass / sum of masses. `weights`: (mass / least mass) ^ -beta, at most 1.
inline Outcome draw_prioritized(const View& view, Random& random, const Batch& batch, float* weights,
                                int64_t deadline_ns) {
  Scratch& scratch = Scratch::of_thread();
  scratch.words.resize(batch.count);
  scratch.pending.resize(batch.count);
  std::iota(scratch.pending.begin(), scratch.pending.end(), 0u);
  std::vector<double> masses(batch.count);
  std::vector<float> leasts(batch.count);
  std::vector<uint32_t> failed;
  int64_t redraws = 0;
  OwnerNap nap;
  while (!scratch.pending.empty()) {
    Outcome drawn;
    {
      Held held(view, view.control->control_lock, deadline_ns);
      if (!held) return blocked_on(kControlLock, held.who());
      float least = 0;
      drawn = draw_by_mass(view, random, batch, scratch, masses.data(), &least, failed);
      for (uint32_t row : scratch.pending) leasts[row] = least;
    }
    if (drawn.status != kOk) return drawn;
    if (!failed.empty()) {
      std::vector<uint32_t> found;
      std::set_difference(scratch.pending.begin(), scratch.pending.end(), failed.begin(), failed.end(),
                          std::back_inserter(found));
      scratch.pending.swap(found);
    }
    copy_and_check(view, batch, scratch);
    scratch.pending.insert(scratch.pending.end(), failed.begin(), failed.end());
    std::sort(scratch.pending.begin(), scratch.pending.end());
    redraws += static_cast<int64_t>(scratch.pending.size());
    if (scratch.pending.empty()) break;
    if (monotonic_ns() >= deadline_ns) return blocked_on(kSlotOwner, drawn.who);
    if (!failed.empty()) nap.rest(view, drawn.value, drawn.who, deadline_ns);
  }
  double beta = order::peek_value(&priorities_of(view).beta);
  for (int64_t row = 0; row < batch.count; ++row) {
    double weight = std::pow(masses[row] / leasts[row], -beta);
    weights[row] = static_cast<float>(weight < 1 ? weight : 1.0);
  }
  return {kOk, redraws, kNothing, 0, 0};
}

// Charge, draw by priority, settle.
inline Outcome sample_prioritized(const View& view, Random random, const Batch& batch, float* weights, int64_t cost,
                                  int64_t deadline_ns) {
  if (!view.has(kPriorities)) return {kCorrupt, 0, kNothing, 0, 0};
  if (!view.acts()) return {kReadOnly, 0, kNothing, 0, 0};
  if (order::observe(&view.control->state) != kReadyState) return {kDead, 0, kNothing, 0, 0};
  Outcome charged = charge(view, cost, deadline_ns);
  if (charged.status != kOk) return charged;
  Outcome drawn = draw_prioritized(view, random, batch, weights, deadline_ns);
  settle_charge(view, charged.value, drawn.status == kOk, drawn.status == kEmpty || drawn.status == kNoMass);
  if (view.has(kLimiter)) drawn.wake |= ring_room(view);
  if (drawn.status == kOk) count_sample(view, batch.count, drawn.value);
  return drawn;
}

// New priorities for records. `generation` null: whatever record is live. Rows whose record is gone are stale; of several
// rows for one record the last counts. value: rows updated, or with kRefused the first impossible row.
inline Outcome update_priorities(const View& view, int64_t count, const int64_t* index, const int64_t* generation,
                                 const float* raw, uint8_t* verdicts, int64_t deadline_ns) {
  if (!view.has(kPriorities)) return {kCorrupt, 0, kNothing, 0, 0};
  for (int64_t i = 0; i < count; ++i) {
    if (priority_is_possible(priorities_of(view), raw[i])) continue;
    view.count(kRefusedPriorities, 1);
    return {kRefused, i, kNothing, 0, 0};
  }
  Held held(view, view.control->control_lock, deadline_ns);
  if (!held) return blocked_on(kControlLock, held.who());
  if (order::observe(&view.control->state) != kReadyState) return {kDead, 0, kNothing, 0, 0};
  std::vector<int64_t> slots;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    int64_t slot = index[i];
    verdicts[i] = kStale;
    if (!view.in_range(slot)) continue;
    uint64_t word = order::observe(&view.words[slot]);
    bool written = word_generation(word) != 0 && !word_void(word) && ticket_is_live(view, slot);
    // A first write in flight already bears its own generation; nobody can have its handle yet.
    bool current = written && (!generation || (generation[i] >= 0 && static_cast<uint64_t>(generation[i]) + 1 == word_generation(word)));
    if (!current || (word_busy(word) && word_revision(word) == 0)) continue;
    verdicts[i] = kUpdated;
    slots.push_back(slot);
    values.push_back(raw[i]);
  }
  auto updated = static_cast<int64_t>(slots.size());
  if (updated > 0) set_priorities(view, slots, values);
  held.let_go();
  if (generation) {
    view.count(kRowsUpdated, updated);
    view.count(kStaleRows, count - updated);
  }
  return {kOk, updated, kNothing, 0, 0};
}

// beta for every later draw; another alpha changes every mass.
inline Outcome set_exponents(const View& view, double alpha, double beta, int64_t deadline_ns) {
  if (!view.has(kPriorities)) return {kCorrupt, 0, kNothing, 0, 0};
  Held held(view, view.control->control_lock, deadline_ns);
  if (!held) return blocked_on(kControlLock, held.who());
  PriorityBlock& block = priorities_of(view);
  order::put_value(&block.beta, beta);
  if (alpha == order::peek_value(&block.alpha)) return {};
  Disagreeing disagreeing(view);
  order::put_value(&block.alpha, alpha);
  rebuild_tree(view);
  return {};
}

}  // namespace shmrb
