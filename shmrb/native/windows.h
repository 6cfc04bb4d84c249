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
  // The slot that lies so many records behind this one, or before it; less than a lap away.
  int64_t away_from(int64_t slot, int64_t offset) const {
    int64_t position = slot - first_slot_ + offset;
    if (position >= view_.lane_capacity) position -= view_.lane_capacity;
    if (position < 0) position += view_.lane_capacity;
    return first_slot_ + position;
  }
  // Word first, run second: the second look at the word vouches for both.
  Record look(int64_t slot) const {
    uint64_t word = order::observe(&view_.words[slot]);
    return {word, order::observe(&view_.runs[slot])};
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

  Expander(const View& view, const Unit& unit, const WindowBatch& batch, Scratch& scratch)
      : view_(view), unit_(unit), batch_(batch), words_(scratch.words), seen_(unit.behind() + unit.ahead() + 1),
        straight_(batch.windows) {
    words_.resize(batch.rows.count);
  }

  // Fills the rows of window `number`. `word`: what the anchor's slot must show; 0: any record will do. kUnsettled: a
  // record is being changed, `in_the_way()` is its slot.
  Verdict expand(int64_t anchor, uint64_t word, int64_t number) {
    LaneWindow lane(view_, view_.lane_of(anchor));
    int64_t ticket = lane.ticket_of(anchor);
    if (ticket < lane.oldest() || lane.size() == 0) return kIllegal;
    int64_t origin = unit_.behind();  // where the anchor lies in `seen_`
    Record& here = seen_[origin] = lane.look(anchor);
    if (word_busy(here.word)) return unsettled(anchor);
    if (!word_whole(here.word) || (word && here.word != word)) return kIllegal;
    int64_t ahead = reach(lane, anchor, origin, 1, std::min(unit_.ahead(), lane.head() - 1 - ticket));
    int64_t behind = reach(lane, anchor, origin, -1, std::min(unit_.behind(), ticket - lane.oldest()));
    if (ahead < 0 || behind < 0) return kUnsettled;
    bool is_legal = ahead >= unit_.least && meets_demand(lane, anchor, ticket, ahead, behind);
    if (!lane.still_has(ticket - behind)) return unsettled(anchor);
    if (!is_legal) return kIllegal;
    int64_t shift = unit_.moves() ? std::clamp<int64_t>(unit_.ahead() - ahead, 0, behind) : 0;
    if (!place_straight(lane, anchor, number, shift, ahead, behind)) place(lane, anchor, number, shift, ahead, behind);
    batch_.anchors[number] = anchor;
    batch_.anchors[batch_.windows + number] = static_cast<int64_t>(word_generation(here.word)) - 1;
    return kPlaced;
  }

  // Copies the windows in `open` and keeps those that changed meanwhile.
  void copy(std::vector<uint32_t>& open) {
    if (unit_.by_step) {
      copy_by_step(open);
    } else {
      copy_by_window(open);
    }
    auto changed = [&](uint32_t number) {
      uint64_t differences = 0;
      for (int64_t step = 0; step < unit_.records(); ++step) {
        int64_t row = batch_.row(unit_, number, step);
        differences |= order::peek(&view_.words[batch_.rows.index[row]]) ^ words_[row];
      }
      return differences != 0;
    };
    stopping::at(stopping::kDrawn);
    order::after_payload();
    open.erase(std::remove_if(open.begin(), open.end(), [&](uint32_t number) { return !changed(number); }), open.end());
  }

  int64_t in_the_way() const { return in_the_way_; }

 private:
  Verdict unsettled(int64_t slot) {
    in_the_way_ = slot;
    return kUnsettled;
  }

  void place(const LaneWindow& lane, int64_t anchor, int64_t number, int64_t shift, int64_t ahead, int64_t behind) {
    straight_[number] = false;
    for (int64_t step = 0; step < unit_.records(); ++step) {
      int64_t wanted = (step - unit_.burn_in) * unit_.dilation - shift;
      int64_t offset = std::clamp(wanted, -behind, ahead);
      int64_t row = batch_.row(unit_, number, step);
      batch_.rows.index[row] = lane.away_from(anchor, offset);
      words_[row] = seen_[unit_.behind() + offset].word;
      batch_.valid[row] = wanted == offset;
    }
  }

  // The same for a window of neighbouring slots, all of them real: most are. False: it is not one.
  bool place_straight(const LaneWindow& lane, int64_t anchor, int64_t number, int64_t shift, int64_t ahead,
                      int64_t behind) {
    int64_t records = unit_.records();
    int64_t from = -unit_.burn_in - shift;
    int64_t slot = lane.away_from(anchor, std::max(from, -behind));
    bool is_straight = !unit_.by_step && unit_.dilation == 1 && from >= -behind && from + records - 1 <= ahead &&
                       lane.away_from(slot, records - 1) == slot + records - 1;
    if (!is_straight) return false;
    straight_[number] = true;
    int64_t* index = batch_.rows.index + number * records;
    uint64_t* words = words_.data() + number * records;
    const Record* seen = &seen_[unit_.behind() + from];
    for (int64_t step = 0; step < records; ++step) index[step] = slot + step;
    for (int64_t step = 0; step < records; ++step) words[step] = seen[step].word;
    std::memset(batch_.valid + number * records, 1, records);
    return true;
  }

  void copy_by_window(const std::vector<uint32_t>& open) {
    const Batch& rows = batch_.rows;
    int64_t records = unit_.records();
    for (size_t i = 0; i < open.size(); ++i) {
      int64_t first = open[i] * records;
      int64_t next = rows.index[i + 1 < open.size() ? open[i + 1] * records : first];
      for (int64_t row = first, end; row < first + records; row = end) {
        end = straight_[open[i]] ? first + records : row + 1;
        while (end < first + records && rows.index[end] == rows.index[end - 1] + 1) ++end;
        gather_stretch(view_, rows.index[row], row, end - row, next, rows.outputs);
      }
      for (int64_t row = first; row < first + records; ++row)
        rows.generation[row] = static_cast<int64_t>(word_generation(words_[row])) - 1;
    }
  }

  void copy_by_step(const std::vector<uint32_t>& open) {
    const Batch& rows = batch_.rows;
    for (int64_t step = 0; step < unit_.records(); ++step) {
      int64_t first = step * batch_.windows;
      gather(view_, rows.index + first, open.data(), static_cast<int64_t>(open.size()),
             rows.outputs + step * view_.columns.size());
      for (uint32_t number : open)
        rows.generation[first + number] = static_cast<int64_t>(word_generation(words_[first + number])) - 1;
    }
  }

  // How far records belong together from the anchor on, one way, at most `limit`, which no live record is beyond. What is
  // being written for the first time is not there yet; -1 when a record is being changed.
  int64_t reach(const LaneWindow& lane, int64_t anchor, int64_t origin, int64_t way, int64_t limit) {
    const bool crosses = unit_.crosses();
    for (int64_t gone = 0; gone < limit; ++gone) {
      int64_t slot = lane.away_from(anchor, way * (gone + 1));
      Record record = lane.look(slot);
      if (is_changing(record.word)) {
        unsettled(slot);
        return -1;
      }
      const Record& here = seen_[origin + way * gone];
      if (!(way > 0 ? follows(here, record, crosses) : follows(record, here, crosses))) return gone;
      seen_[origin + way * (gone + 1)] = record;
    }
    return limit;
  }

  bool meets_demand(const LaneWindow& lane, int64_t anchor, int64_t ticket, int64_t ahead, int64_t behind) const {
    bool is_full = ahead == unit_.ahead() && behind >= unit_.dilation * unit_.burn_in;
    if (is_full || unit_.demand == Demand::kAnything) return true;
    if (unit_.demand == Demand::kFull) return false;
    const Record& here = seen_[unit_.behind()];
    if (unit_.demand == Demand::kFullOrWhole)
      return ticket == lane.oldest() || !follows(lane.look(lane.away_from(anchor, -1)), here, unit_.crosses());
    // The newest record of an open trajectory has no future yet; that of one that was cut never will have.
    if (ahead == unit_.ahead() || (seen_[unit_.behind() + ahead].run & kRunLast)) return true;
    return ticket + ahead + 1 < lane.head() && !word_busy(lane.look(lane.away_from(anchor, ahead + 1)).word);
  }

  const View& view_;
  const Unit& unit_;
  const WindowBatch& batch_;
  std::vector<uint64_t>& words_;
  std::vector<Record> seen_;
  std::vector<uint8_t> straight_;  // one a window: its rows are neighbouring slots
  int64_t in_the_way_ = -1;
};

// The runs of a lane, oldest first: first ticket, records, number, whether it ended. What is void, in flight or of another
// run cuts.
inline std::vector<std::array<int64_t, 4>> list_runs(const View& view, uint32_t lane_index) {
  LaneWindow lane(view, lane_index);
  std::vector<std::array<int64_t, 4>> runs;
  Record before{0, 0};
  for (int64_t ticket = lane.oldest(); ticket < lane.head(); ++ticket) {
    Record record = lane.look(lane.slot_of(ticket));
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
