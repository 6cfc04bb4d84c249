// Reading records: look at the word, copy, look again. A record whose word changed in between is not handed out; a draw
// that hit one is drawn again from the whole distribution, since retrying on the spot would favour quiet slots.
#pragma once

#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "gather.h"
#include "limiter.h"
#include "random.h"
#include "write.h"

namespace shmrb {

// Where a batch goes: one contiguous array a column (null: skip), and what names and dates each record.
struct Batch {
  int64_t count;
  uint8_t* const* outputs;
  int64_t* index;
  int64_t* generation;
  int64_t* version;  // null: not wanted
};

// The live positions of all lanes, as one draw sees them.
class Population {
 public:
  explicit Population(const View& view) : view_(view), sizes_(view.lane_count) {
    for (uint32_t i = 0; i < view.lane_count; ++i) {
      sizes_[i] = Window::of(view.lanes[i]).tickets(view.lane_capacity);
      total_ += sizes_[i];
    }
  }
  int64_t total() const { return total_; }

  int64_t draw(Random& random) const {
    auto nth = static_cast<int64_t>(random.below(total_));
    if (total_ == view_.capacity) return nth;
    uint32_t lane = 0;
    while (nth >= sizes_[lane]) nth -= sizes_[lane++];
    return lane * view_.lane_capacity + nth;
  }

  template <typename Visit>
  void each(Visit visit) const {
    for (uint32_t lane = 0; lane < view_.lane_count; ++lane)
      for (int64_t i = 0; i < sizes_[lane]; ++i) visit(lane * view_.lane_capacity + i);
  }

 private:
  const View& view_;
  std::vector<int64_t> sizes_;
  int64_t total_ = 0;
};

// Buffers of one call, kept by the thread so that a batch costs no allocation.
struct Scratch {
  std::vector<uint64_t> words;
  std::vector<uint32_t> pending;
  static Scratch& of_thread() {
    thread_local Scratch scratch;
    return scratch;
  }
};

// Copies the pending rows and keeps those whose word changed meanwhile as pending.
inline void copy_and_check(const View& view, const Batch& batch, Scratch& scratch) {
  auto& pending = scratch.pending;
  auto count = static_cast<int64_t>(pending.size());
  gather(view, batch.index, pending.data(), count, batch.outputs);
  for (uint32_t row : pending) {
    batch.generation[row] = static_cast<int64_t>(word_generation(scratch.words[row])) - 1;
    if (batch.version) batch.version[row] = order::peek(&view.versions[batch.index[row]]);
  }
  stopping::at(stopping::kDrawn);
  order::after_payload();
  size_t kept = 0;
  for (uint32_t row : pending)
    if (order::peek(&view.words[batch.index[row]]) != scratch.words[row]) pending[kept++] = row;
  pending.resize(kept);
}

// Draws by counting: for when whole records are too few to be hit by chance. False when there is none; then `*busy` is a
// slot in a living client's hands, or -1.
inline bool draw_by_count(const View& view, const Population& population, Random& random, int64_t* slot, uint64_t* word,
                          int64_t* busy) {
  std::vector<std::pair<int64_t, uint64_t>> whole;
  *busy = -1;
  population.each([&](int64_t candidate) {
    uint64_t seen = order::observe(&view.words[candidate]);
    if (word_whole(seen)) whole.emplace_back(candidate, seen);
    if (word_busy(seen)) *busy = candidate;
  });
  if (whole.empty()) return false;
  // The word as it was counted: if it moved on since, the second look says so.
  std::tie(*slot, *word) = whole[random.below(whole.size())];
  return true;
}

constexpr int kDrawsByChance = 64;

// Draws each pending row. kOk, kEmpty when no record is whole, or kAgain when the only ones are being written.
inline Outcome draw_pending(const View& view, const Population& population, Random& random, const Batch& batch,
                            Scratch& scratch) {
  for (uint32_t row : scratch.pending) {
    batch.index[row] = population.draw(random);
    __builtin_prefetch(&view.words[batch.index[row]]);
  }
  for (uint32_t row : scratch.pending) {
    int64_t slot = batch.index[row];
    uint64_t word = order::observe(&view.words[slot]);
    for (int tries = 0; !word_whole(word) && tries < kDrawsByChance; ++tries) {
      slot = population.draw(random);
      word = order::observe(&view.words[slot]);
    }
    if (!word_whole(word)) {
      int64_t busy;
      if (!draw_by_count(view, population, random, &slot, &word, &busy)) {
        uint32_t owner = busy < 0 ? 0 : order::peek(&view.owners[busy]);
        if (busy < 0) return {kEmpty, 0, kNothing, 0, 0};
        if (owner != 0 && view.acts() && !view.liveness.alive(owner) && claim_slot(view, busy) == 0)
          free_slot(view, busy);
        return {kAgain, busy, kSlotOwner, owner, 0};
      }
    }
    batch.index[row] = slot;
    scratch.words[row] = word;
  }
  return {};
}

// A uniform draw over the live records of all lanes. value: how many rows were drawn more than once.
inline Outcome draw_uniform(const View& view, Random& random, const Batch& batch, int64_t deadline_ns) {
  Scratch& scratch = Scratch::of_thread();
  scratch.words.resize(batch.count);
  scratch.pending.resize(batch.count);
  std::iota(scratch.pending.begin(), scratch.pending.end(), 0u);
  int64_t redraws = 0;
  OwnerNap nap;
  for (;;) {
    Population population(view);
    if (population.total() == 0) return {kEmpty, 0, kNothing, 0, 0};
    Outcome drawn = draw_pending(view, population, random, batch, scratch);
    if (drawn.status == kEmpty) return drawn;
    size_t before = scratch.pending.size();
    if (drawn.status == kOk) copy_and_check(view, batch, scratch);
    if (scratch.pending.empty()) return {kOk, redraws, kNothing, 0, 0};
    redraws += static_cast<int64_t>(scratch.pending.size());
    if (drawn.status == kAgain) {
      if (monotonic_ns() >= deadline_ns) return blocked_on(kSlotOwner, drawn.who);
      nap.rest(view, drawn.value, drawn.who, deadline_ns);
    } else if (scratch.pending.size() == before && monotonic_ns() >= deadline_ns) {
      return blocked_on(kNothing, 0);  // a call that gets nearer goes on: the next one would start anew
    }
  }
}

inline void count_sample(const View& view, int64_t records, int64_t redraws) {
  order::put(&view.me()->duties, view.me()->duties | 2u);
  view.count(kSampleCalls, 1);
  view.count(kRecordsSampled, records);
  view.count(kRedraws, redraws);
}

// Charge, draw, settle. `cost`: loss-bearing records to charge, 0 for none.
inline Outcome sample_uniform(const View& view, Random random, const Batch& batch, int64_t cost, int64_t deadline_ns) {
  if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
  Outcome charged = charge(view, cost, deadline_ns);
  if (charged.status != kOk) return charged;
  Outcome drawn = draw_uniform(view, random, batch, deadline_ns);
  drawn.wake |= settle_charge(view, charged.value, drawn.status == kOk, drawn.status == kEmpty);
  if (drawn.status == kOk && view.token) count_sample(view, batch.count, drawn.value);
  return drawn;
}

// Reads the given slots. A row whose slot holds no live record gets generation -1 and keeps what the output held. A slot
// that a living client is writing is waited for.
inline Outcome read_slots(const View& view, const Batch& batch, int64_t deadline_ns) {
  Scratch& scratch = Scratch::of_thread();
  scratch.words.resize(batch.count);
  std::vector<uint32_t> open(batch.count);
  std::iota(open.begin(), open.end(), 0u);
  OwnerNap nap;
  while (!open.empty()) {
    int64_t busy = -1;
    std::vector<uint32_t> later;
    scratch.pending.clear();
    for (uint32_t row : open) {
      int64_t slot = batch.index[row];
      uint64_t word = order::observe(&view.words[slot]);
      batch.generation[row] = -1;
      if (batch.version) batch.version[row] = -1;
      if (word_busy(word)) {
        uint32_t owner = order::peek(&view.owners[slot]);
        if (owner != 0 && view.acts() && !view.liveness.alive(owner) && claim_slot(view, slot) == 0)
          free_slot(view, slot);
        busy = slot;
        later.push_back(row);
      } else if (word_whole(word) && ticket_is_live(view, slot)) {
        scratch.words[row] = word;
        scratch.pending.push_back(row);
      }
    }
    copy_and_check(view, batch, scratch);
    later.insert(later.end(), scratch.pending.begin(), scratch.pending.end());
    bool nearer = later.size() < open.size();
    open.swap(later);
    if (open.empty()) break;
    uint32_t owner = busy < 0 ? 0 : order::peek(&view.owners[busy]);
    if (!nearer && monotonic_ns() >= deadline_ns) return blocked_on(kSlotOwner, owner);
    if (owner != 0) nap.rest(view, busy, owner, deadline_ns);
  }
  return {};
}

// Charge, read, settle: what a sampler that chose the slots itself calls.
inline Outcome sample_slots(const View& view, const Batch& batch, int64_t cost, int64_t deadline_ns) {
  if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
  Outcome charged = charge(view, cost, deadline_ns);
  if (charged.status != kOk) return charged;
  Outcome read = read_slots(view, batch, deadline_ns);
  if (cost == 0) return read;
  read.wake |= settle_charge(view, charged.value, read.status == kOk, false);
  if (read.status == kOk && view.token) count_sample(view, batch.count, 0);
  return read;
}

}  // namespace shmrb
