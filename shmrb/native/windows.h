// Windows: from an anchor to the records around it, never across what does not belong together.
//
// A window's bounds are read from the run words within its own reach, so its cost does not depend on how many records or
// trajectories there are. Every record's word is looked at before its run word and again after the copy, and the lane's
// head after the first look: a window is handed out whole or drawn again.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "read.h"

namespace shmrb {

// What happens where a trajectory ends. The first two end there, the last two only where the lane was interrupted.
enum class Boundary : int {
  kPad = 0,          // repeat the last record
  kStop = 1,         // move the window back
  kIncludeReset = 2, // go on into the next trajectory
  kStopAtCut = 3,    // go on, and move back where the lane was interrupted
};
enum class Demand : int {
  kAnything = 0,
  kFull = 1,       // every record of the window exists
  kReturn = 2,     // the steps after the anchor are all there, or the trajectory ended: not just "not written yet"
  kFullOrWhole = 3,  // every record exists, or the window is all that is left of a shorter run
};

// The shape of a window. Its records: burn_in before the anchor, length from it on, bootstrap after those.
struct Unit {
  int64_t length, burn_in, bootstrap, dilation;
  Boundary boundary;
  Demand demand;
  int64_t least;  // records that must follow the anchor, of its own trajectory
  bool by_step;   // rows of a batch: all windows' first records, then their second; else window by window

  int64_t records() const { return burn_in + length + bootstrap; }
  int64_t ahead() const { return dilation * (length + bootstrap - 1); }
  int64_t behind() const { return dilation * burn_in + (moves() ? ahead() : 0); }
  bool moves() const { return boundary == Boundary::kStop || boundary == Boundary::kStopAtCut; }
  bool crosses() const { return boundary == Boundary::kIncludeReset || boundary == Boundary::kStopAtCut; }
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
  // Was this ticket still the newest of its slot when all that was looked at had been seen? A writer moves the head
  // before it publishes a word.
  bool still_has(int64_t ticket) const { return ticket >= LaneWindow(view_, lane_).oldest(); }

 private:
  const View& view_;
  uint32_t lane_;
  int64_t first_slot_;
  Window window_;
};

// May a window go from a record to the one after it?
inline bool follows(const Record& before, const Record& after, bool crosses_ends) {
  if (!word_whole(before.word) || !word_whole(after.word)) return false;
  uint32_t number = before.run & kRunNumberMask;
  uint32_t next = after.run & kRunNumberMask;
  if (number == next) return true;
  return crosses_ends && (before.run & kRunLast) && (after.run & kRunFirst) && next == ((number + 1) & kRunNumberMask);
}

// A record that somebody changes in place is there, only not to be read now.
inline bool is_changing(uint64_t word) { return word_busy(word) && word_revision(word) != 0; }

struct WindowBatch {
  Batch rows;  // count = windows * unit.records(); by step, outputs are those of the first step, the second, and so on
  int64_t windows;
  int64_t* anchors;  // slots, before any shift; then the generation of each
  uint8_t* valid;    // one a row
  float* weights;    // one a window; null: not wanted

  int64_t row(const Unit& unit, int64_t number, int64_t step) const {
    return unit.by_step ? step * windows + number : number * unit.records() + step;
  }
};

// Expands anchors of one unit into rows of a batch.
class Expander {
 public:
  enum Verdict { kPlaced, kIllegal, kUnsettled };

  Expander(const View& view, const Unit& unit, const WindowBatch& batch, std::vector<uint64_t>& words)
      : view_(view), unit_(unit), batch_(batch), words_(words), seen_(unit.behind() + unit.ahead() + 1) {}

  // Fills the rows of window `number`. `word`: what the anchor's slot must show; 0: any record will do. kUnsettled: a
  // record is being changed, `in_the_way()` is its slot.
  Verdict expand(int64_t anchor, uint64_t word, int64_t number) {
    LaneWindow lane(view_, view_.lane_of(anchor));
    int64_t ticket = lane.ticket_of(anchor);
    if (ticket < lane.oldest() || lane.size() == 0) return kIllegal;
    int64_t origin = unit_.behind();  // where the anchor lies in `seen_`
    Record& here = seen_[origin] = lane.look(ticket);
    if (word_busy(here.word)) return unsettled(anchor);
    if (!word_whole(here.word) || (word && here.word != word)) return kIllegal;
    int64_t ahead = reach(lane, ticket, origin, 1, unit_.ahead());
    int64_t behind = reach(lane, ticket, origin, -1, unit_.behind());
    if (ahead < 0 || behind < 0) return kUnsettled;
    bool is_legal = ahead >= unit_.least && meets_demand(lane, ticket, ahead, behind);
    if (!lane.still_has(ticket - behind)) return unsettled(anchor);
    if (!is_legal) return kIllegal;
    int64_t shift = unit_.moves() ? std::clamp<int64_t>(unit_.ahead() - ahead, 0, behind) : 0;
    for (int64_t step = 0; step < unit_.records(); ++step) {
      int64_t wanted = (step - unit_.burn_in) * unit_.dilation - shift;
      int64_t offset = std::clamp(wanted, -behind, ahead);
      int64_t row = batch_.row(unit_, number, step);
      batch_.rows.index[row] = lane.slot_of(ticket + offset);
      words_[row] = seen_[origin + offset].word;
      batch_.valid[row] = wanted == offset;
    }
    batch_.anchors[number] = anchor;
    batch_.anchors[batch_.windows + number] = static_cast<int64_t>(word_generation(here.word)) - 1;
    return kPlaced;
  }

  int64_t in_the_way() const { return in_the_way_; }

 private:
  Verdict unsettled(int64_t slot) {
    in_the_way_ = slot;
    return kUnsettled;
  }

  // How far records belong together from the anchor on, one way, at most `limit`. What is being written for the first
  // time is not there yet; -1 when a record is being changed.
  int64_t reach(const LaneWindow& lane, int64_t ticket, int64_t origin, int64_t way, int64_t limit) {
    int64_t gone = 0;
    while (gone < limit) {
      int64_t next = ticket + way * (gone + 1);
      if (next >= lane.head() || next < lane.oldest()) break;
      Record record = lane.look(next);
      if (is_changing(record.word)) {
        unsettled(lane.slot_of(next));
        return -1;
      }
      const Record& here = seen_[origin + way * gone];
      if (!(way > 0 ? follows(here, record, unit_.crosses()) : follows(record, here, unit_.crosses()))) break;
      ++gone;
      seen_[origin + way * gone] = record;
    }
    return gone;
  }

  bool meets_demand(const LaneWindow& lane, int64_t ticket, int64_t ahead, int64_t behind) const {
    bool is_full = ahead == unit_.ahead() && behind >= unit_.dilation * unit_.burn_in;
    if (is_full || unit_.demand == Demand::kAnything) return true;
    if (unit_.demand == Demand::kFull) return false;
    if (unit_.demand == Demand::kFullOrWhole)
      return ticket == lane.oldest() || !follows(lane.look(ticket - 1), lane.look(ticket), unit_.crosses());
    // The newest record of an open trajectory has no future yet; that of one that was cut never will have.
    int64_t next = ticket + ahead + 1;
    bool ended = seen_[unit_.behind() + ahead].run & kRunLast;
    return ahead == unit_.ahead() || ended || (next < lane.head() && !word_busy(lane.look(next).word));
  }

  const View& view_;
  const Unit& unit_;
  const WindowBatch& batch_;
  std::vector<uint64_t>& words_;
  std::vector<Record> seen_;
  int64_t in_the_way_ = -1;
};

// Copies the windows in `open` and keeps those that changed meanwhile.
inline void copy_windows(const View& view, const Unit& unit, const WindowBatch& batch, Scratch& scratch,
                         std::vector<uint32_t>& open) {
  auto& rows = scratch.pending;
  const Batch& to = batch.rows;
  auto steps = static_cast<uint32_t>(unit.records());
  rows.clear();
  for (uint32_t number : open)
    for (uint32_t step = 0; step < steps; ++step) rows.push_back(static_cast<uint32_t>(batch.row(unit, number, step)));
  if (!unit.by_step) {
    gather_stretches(view, to.index, rows.data(), static_cast<int64_t>(rows.size()), to.outputs);
  } else {
    for (uint32_t step = 0; step < steps; ++step)
      gather(view, to.index + step * batch.windows, open.data(), static_cast<int64_t>(open.size()),
             to.outputs + step * view.columns.size());
  }
  for (uint32_t row : rows) to.generation[row] = static_cast<int64_t>(word_generation(scratch.words[row])) - 1;
  stopping::at(stopping::kDrawn);
  order::after_payload();
  size_t kept = 0;
  for (size_t i = 0; i < open.size(); ++i) {
    bool whole = true;
    for (uint32_t step = 0; step < steps; ++step) {
      uint32_t row = rows[i * steps + step];
      whole &= order::peek(&view.words[to.index[row]]) == scratch.words[row];
    }
    if (!whole) open[kept++] = open[i];
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
      if (!follows(before, record, false)) runs.push_back({ticket, 0, record.run & kRunNumberMask, 0});
      ++runs.back()[1];
      runs.back()[3] = (record.run & kRunLast) != 0;
    }
    before = record;
  }
  return runs;
}

// How the runs of all lanes look, for who asks why no window fits.
struct RunSummary {
  int64_t runs = 0, shortest = 0, longest = 0;
  int64_t cut = 0;  // runs that did not end, the newest of each lane left out
};

inline RunSummary summarize_runs(const View& view) {
  RunSummary summary;
  for (uint32_t lane = 0; lane < view.lane_count; ++lane) {
    auto runs = list_runs(view, lane);
    for (size_t i = 0; i < runs.size(); ++i) {
      int64_t records = runs[i][1];
      summary.shortest = summary.runs ? std::min(summary.shortest, records) : records;
      summary.longest = std::max(summary.longest, records);
      summary.cut += !runs[i][3] && i + 1 < runs.size();
      ++summary.runs;
    }
  }
  return summary;
}

}  // namespace shmrb
