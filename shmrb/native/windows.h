// Windows: from an anchor to the records around it, never across what does not belong together.
//
// A window's bounds are read from the run words within its own reach, so its cost does not depend on how many records or
// trajectories there are. Every record's word is looked at before its run word and again after the copy: a window is
// handed out whole or drawn again.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "read.h"

namespace shmrb {

enum class Boundary : int { kPad = 0, kStop = 1, kIncludeReset = 2 };
enum class Demand : int {
  kAnything = 0,
  kFull = 1,       // every record of the window exists
  kReturn = 2,     // the steps after the anchor are all there, or the trajectory ended: not just "not written yet"
};

// The shape of a window. Its records: burn_in before the anchor, length from it on, bootstrap after those.
struct Unit {
  int64_t length, burn_in, bootstrap, dilation;
  Boundary boundary;
  Demand demand;

  int64_t records() const { return burn_in + length + bootstrap; }
  int64_t ahead() const { return dilation * (length + bootstrap - 1); }
  int64_t behind() const { return dilation * burn_in + (boundary == Boundary::kStop ? ahead() : 0); }
};

struct Record {
  uint64_t word;
  uint32_t run;
};

// One lane as one draw sees it, addressed by ticket.
class LaneWindow {
 public:
  LaneWindow(const View& view, uint32_t lane)
      : view_(view), lane_(lane), first_slot_(lane * view.lane_capacity), window_(Window::of(view.lanes[lane])) {}

  int64_t head() const { return window_.head; }
  int64_t oldest() const { return window_.head - size(); }
  int64_t size() const { return window_.tickets(view_.lane_capacity); }
  uint32_t lane() const { return lane_; }
  int64_t slot_of(int64_t ticket) const { return first_slot_ + ticket % view_.lane_capacity; }
  // The ticket that lies in this position; below oldest() when none is live there.
  int64_t ticket_of(int64_t slot) const {
    int64_t behind = (window_.head - 1 - (slot - first_slot_)) % view_.lane_capacity;
    return window_.head - 1 - (behind < 0 ? behind + view_.lane_capacity : behind);
  }
  // Word first, run second: the second look at the word vouches for both.
  Record look(int64_t ticket) const {
    uint64_t word = order::observe(&view_.words[slot_of(ticket)]);
    return {word, order::observe(&view_.runs[slot_of(ticket)])};
  }

 private:
  const View& view_;
  uint32_t lane_;
  int64_t first_slot_;
  Window window_;
};

// May a window go from a record to the one after it?
inline bool follows(const Record& before, const Record& after, Boundary boundary) {
  if (!word_whole(before.word) || !word_whole(after.word)) return false;
  if ((before.run & kRunNumberMask) == (after.run & kRunNumberMask)) return true;
  return boundary == Boundary::kIncludeReset && (before.run & kRunLast) && (after.run & kRunFirst);
}

// Expands anchors of one unit into rows of a batch; keeps its memory between calls.
class Expander {
 public:
  Expander(const View& view, const Unit& unit, const Batch& batch, uint8_t* valid, std::vector<uint64_t>& words)
      : view_(view), unit_(unit), batch_(batch), valid_(valid), words_(words),
        seen_(unit.behind() + unit.ahead() + 1) {}

  // Fills the rows of window `number`. False when the anchor is no legal one.
  bool expand(int64_t anchor, int64_t number) {
    LaneWindow lane(view_, view_.lane_of(anchor));
    int64_t ticket = lane.ticket_of(anchor);
    if (ticket < lane.oldest() || lane.size() == 0) return false;
    int64_t origin = unit_.behind();  // where the anchor lies in `seen_`
    seen_[origin] = lane.look(ticket);
    if (!word_whole(seen_[origin].word)) return false;
    int64_t ahead = reach(lane, ticket, origin, 1, unit_.ahead());
    int64_t behind = reach(lane, ticket, origin, -1, unit_.behind());
    if (!meets_demand(lane, ticket, ahead, seen_[origin + ahead])) return false;
    int64_t shift = 0;
    if (unit_.boundary == Boundary::kStop) shift = std::clamp<int64_t>(unit_.ahead() - ahead, 0, behind);
    int64_t records = unit_.records();
    for (int64_t step = 0; step < records; ++step) {
      int64_t wanted = (step - unit_.burn_in) * unit_.dilation - shift;
      int64_t offset = std::clamp(wanted, -behind, ahead);
      int64_t row = number * records + step;
      batch_.index[row] = lane.slot_of(ticket + offset);
      words_[row] = seen_[origin + offset].word;
      valid_[row] = wanted == offset;
      if (unit_.demand == Demand::kFull && !valid_[row]) return false;
    }
    return true;
  }

 private:
  // How far records belong together from the anchor on, one way, at most `limit`.
  int64_t reach(const LaneWindow& lane, int64_t ticket, int64_t origin, int64_t way, int64_t limit) {
    int64_t gone = 0;
    while (gone < limit) {
      int64_t next = ticket + way * (gone + 1);
      if (next >= lane.head() || next < lane.oldest()) break;
      Record record = lane.look(next);
      const Record& here = seen_[origin + way * gone];
      if (!(way > 0 ? follows(here, record, unit_.boundary) : follows(record, here, unit_.boundary))) break;
      ++gone;
      seen_[origin + way * gone] = record;
    }
    return gone;
  }

  // For returns over several steps: the newest record of an open trajectory has no future yet.
  bool meets_demand(const LaneWindow& lane, int64_t ticket, int64_t ahead, const Record& last) const {
    if (unit_.demand != Demand::kReturn || ahead == unit_.ahead() || (last.run & kRunLast)) return true;
    int64_t next = ticket + ahead + 1;
    return next < lane.head() && !word_busy(lane.look(next).word);
  }

  const View& view_;
  const Unit& unit_;
  const Batch& batch_;
  uint8_t* valid_;
  std::vector<uint64_t>& words_;
  std::vector<Record> seen_;
};

// Copies the windows in `open` and keeps those that changed meanwhile.
inline void copy_windows(const View& view, const Unit& unit, const Batch& batch, Scratch& scratch,
                         std::vector<uint32_t>& open) {
  auto records = static_cast<uint32_t>(unit.records());
  scratch.pending.clear();
  for (uint32_t number : open)
    for (uint32_t step = 0; step < records; ++step) scratch.pending.push_back(number * records + step);
  copy_and_check(view, batch, scratch);
  size_t kept = 0;
  uint32_t last = UINT32_MAX;
  for (uint32_t row : scratch.pending) {
    if (row / records == last) continue;
    last = row / records;
    open[kept++] = last;
  }
  open.resize(kept);
}

// The runs of a lane, oldest first: first ticket, records, number, whether it ended. What is void, in flight or of another
// run cuts.
inline std::vector<std::array<int64_t, 4>> list_runs(const View& view, uint32_t lane_index) {
  LaneWindow lane(view, lane_index);
  std::vector<std::array<int64_t, 4>> runs;
  Record before{0, 0};
  for (int64_t ticket = lane.oldest(); ticket < lane.head(); ++ticket) {
    Record record = lane.look(ticket);
    if (word_whole(record.word)) {
      if (!follows(before, record, Boundary::kPad)) runs.push_back({ticket, 0, record.run & kRunNumberMask, 0});
      ++runs.back()[1];
      runs.back()[3] = (record.run & kRunLast) != 0;
    }
    before = record;
  }
  return runs;
}

}  // namespace shmrb
