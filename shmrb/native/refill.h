// Rows that fill slots whose record was consumed, instead of taking tickets: head and ring order stay, the slot gets a new
// generation and a run of its own.
#pragma once

#include "rows.h"

namespace shmrb {

// The rows of a write from one of them on.
struct Tail {
  Tail(const View& view, const Rows& whole) : rows(whole), view_(view), whole_(whole) {}
  Tail(const Tail&) = delete;
  Tail& operator=(const Tail&) = delete;

  void begin_at(int64_t first) {
    rows = whole_;
    if (first == 0) return;
    columns_.resize(view_.columns.size());
    for (size_t c = 0; c < columns_.size(); ++c)
      columns_[c] = whole_.columns[c] ? whole_.columns[c] + first * view_.columns[c].row_bytes : nullptr;
    rows = {whole_.count - first, columns_.data(), whole_.versions ? whole_.versions + first : nullptr,
            whole_.priorities ? whole_.priorities + first : nullptr, whole_.slots ? whole_.slots + first : nullptr};
  }

  Rows rows;

 private:
  const View& view_;
  const Rows& whole_;
  std::vector<const uint8_t*> columns_;
};

// The first rows of a write, as many as slots are queued. REQUIRES for all but copy and publish: the control lock.
class Refill {
 public:
  explicit Refill(const Rows& rows) : rows_(rows) {}

  bool is_empty() const { return taken_ == 0; }
  int64_t taken() const { return taken_; }                                         // rows
  int64_t in_flight() const { return static_cast<int64_t>(targets_.size()); }      // of them, those that are written

  // Chooses the slots, oldest consumption first. None is skipped by the ring: where the same write's tickets come to a slot
  // that it has just filled, the later row stays.
  void plan(const View& view, int64_t head) {
    targets_.clear();
    std::vector<int64_t> slots = view.consumption().queued(rows_.count, &queue_end_);
    taken_ = static_cast<int64_t>(slots.size());
    int64_t tickets = rows_.count - taken_;
    for (int64_t row = 0; row < taken_; ++row) {
      int64_t ahead = (slots[row] - head) % view.lane_capacity;
      if (ahead < 0) ahead += view.lane_capacity;
      if (rows_.slots) rows_.slots[row] = slots[row];
      if (ahead >= tickets) targets_.push_back({row, slots[row]});
    }
  }

  // 0, or the living owner of `*at`; then nothing is claimed.
  uint32_t claim(const View& view, int64_t* at) const {
    for (size_t i = 0; i < targets_.size(); ++i) {
      uint32_t owner = claim_slot(view, targets_[i].slot);
      if (owner == 0) continue;
      for (size_t k = 0; k < i; ++k) free_slot(view, targets_[k].slot);
      *at = targets_[i].slot;
      return owner;
    }
    return 0;
  }

  void unclaim(const View& view) const {
    for (const Target& target : targets_) free_slot(view, target.slot);
  }

  // How many of the slots were void.
  int64_t mark(const View& view) const {
    int64_t holes = 0;
    for (const Target& target : targets_) {
      uint64_t word = order::peek(&view.words[target.slot]);
      holes += word_void(word);
      order::publish(&view.words[target.slot], make_word(next_generation(view, word, false), 0, kBusy64));
      if (&target == targets_.data()) stopping::at(stopping::kMidMark);
    }
    return holes;
  }

  // Each row is a run of its own, and no run goes on over what was written out of turn. A number is left out behind each,
  // so that no window takes the next one for its neighbour.
  void stamp_runs(const View& view, LaneBlock& lane) const {
    if (is_empty()) return;
    uint32_t number = order::peek(&lane.next_run);
    for (const Target& target : targets_) {
      number = (number + 2) & kRunNumberMask;
      order::put(&view.runs[target.slot], kRunFirst | kRunLast | number);
      view.starts.recount(view.lane_of(target.slot), target.slot % view.lane_capacity, 1);
    }
    order::put(&lane.next_run, (number + 2) & kRunNumberMask);
    order::put(&lane.run_ended, 1u);
  }

  void enter_leaves(const View& view, int64_t first_slot) const {
    for (const Target& target : targets_)
      shmrb::enter_leaves(view, first_slot, target.slot - first_slot, 1,
                          rows_.priorities ? rows_.priorities + target.row : nullptr);
  }

  // The rows count as written, the slots leave the queue and hold records, the head moves.
  void count(const View& view, LaneBlock& lane, int64_t new_head) const {
    change(view, lane.journal,
           {{&lane.written_offset, static_cast<uint64_t>(order::peek(&lane.written_offset) + taken_)},
            {view.consumption().queue_head(), static_cast<uint64_t>(queue_end_)},
            {&lane.head, static_cast<uint64_t>(new_head)}});
    for (const Target& target : targets_) view.consumption().enter(target.slot);
  }

  void copy(const View& view) const {
    for (const Target& target : targets_) copy_rows_in(view, rows_, target.row, target.slot, 1);
  }

  void publish(const View& view) const {
    for (const Target& target : targets_) {
      publish_slot(view, target.slot);
      if (&target == targets_.data()) stopping::at(stopping::kMidCommit);
    }
  }

 private:
  struct Target {
    int64_t row;
    int64_t slot;
  };

  const Rows& rows_;
  std::vector<Target> targets_;
  int64_t taken_ = 0;
  int64_t queue_end_ = 0;
};

}  // namespace shmrb
