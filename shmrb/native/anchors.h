// Which anchors: uniform over records, by priority mass, or uniform over trajectories.
#pragma once

#include <map>
#include <optional>

#include "draw.h"
#include "windows.h"

namespace shmrb {

// `word` is what the slot showed when it was drawn, 0 when any record will do. `weight` is its importance weight.
struct Anchor {
  int64_t slot = -1;  // -1: none this time
  uint64_t word = 0;
  float weight = 1;
};

class AnchorSource {
 public:
  virtual ~AnchorSource() = default;
  // Looks at the buffer anew.
  virtual void refresh() = 0;
  // kOk, also when the draw came to nothing; else why there is no sense in drawing on.
  virtual Outcome draw(Random& random, Anchor* anchor) = 0;
  // When chance finds no legal anchor: one of `legal`, in the proportions of `draw`.
  virtual Outcome draw_among(Random& random, const std::vector<int64_t>& legal, Anchor* anchor) = 0;
};

class UniformAnchors : public AnchorSource {
 public:
  explicit UniformAnchors(const View& view) : view_(view), population_(std::in_place, view) {}
  void refresh() override { population_.emplace(view_); }
  Outcome draw(Random& random, Anchor* anchor) override {
    if (population_->total() > 0) anchor->slot = population_->draw(random);
    return {};
  }
  Outcome draw_among(Random& random, const std::vector<int64_t>& legal, Anchor* anchor) override {
    anchor->slot = legal[random.below(legal.size())];
    return {};
  }

 private:
  const View& view_;
  std::optional<Population> population_;
};

// Draws a handful at a time, since each needs the control lock.
class MassAnchors : public AnchorSource {
 public:
  MassAnchors(const View& view, int64_t wanted, int64_t deadline_ns)
      : view_(view), handful_(wanted > kLeastHandful ? wanted : kLeastHandful), deadline_ns_(deadline_ns) {}

  void refresh() override { drawn_.clear(); }

  Outcome draw(Random& random, Anchor* anchor) override {
    if (drawn_.empty()) {
      Outcome filled = refill(random);
      if (filled.status != kOk) return filled;
    }
    *anchor = drawn_.back();
    drawn_.pop_back();
    return {};
  }

  Outcome draw_among(Random& random, const std::vector<int64_t>& legal, Anchor* anchor) override {
    Held held(view_, view_.control->control_lock, deadline_ns_);
    if (!held) return blocked_on(kControlLock, held.who());
    double total = 0;
    for (int64_t slot : legal) total += view_.tree.leaf(slot).mass;
    if (!(total > 0)) return {kNoMass, 0, kNothing, 0, 0};
    double left = random.unit() * total;
    for (int64_t slot : legal) {
      double mass = view_.tree.leaf(slot).mass;
      if (mass <= 0) continue;
      *anchor = seen(slot);  // the last one with mass stays when rounding leaves a remainder
      if (left < mass) break;
      left -= mass;
    }
    return {};
  }

 private:
  static constexpr int64_t kLeastHandful = 32;

  Anchor seen(int64_t slot) const {
    double beta = order::peek_value(&priorities_of(view_).beta);
    double weight = std::pow(view_.tree.leaf(slot).mass / view_.tree.least(), -beta);
    return {slot, order::observe(&view_.words[slot]), static_cast<float>(weight < 1 ? weight : 1.0)};
  }

  Outcome refill(Random& random) {
    Held held(view_, view_.control->control_lock, deadline_ns_);
    if (!held) return blocked_on(kControlLock, held.who());
    settle_holes(view_, true);
    double total = view_.tree.total();
    if (!(total > 0)) return {live_records(view_) > 0 ? kNoMass : kEmpty, 0, kNothing, 0, 0};
    std::vector<double> targets(handful_);
    std::vector<int64_t> slots(handful_);
    for (double& target : targets) target = random.unit() * total;
    view_.tree.locate(targets.data(), handful_, slots.data());
    for (int64_t slot : slots) drawn_.push_back(seen(slot));
    return {};
  }

  const View& view_;
  int64_t handful_;
  int64_t deadline_ns_;
  std::vector<Anchor> drawn_;
};

// A trajectory with equal chances, then a start in it with equal chances: every trajectory counts once, however long. With
// `strict` only those that are long enough count.
class TrajectoryAnchors : public AnchorSource {
 public:
  TrajectoryAnchors(const View& view, int64_t span, bool strict) : view_(view), span_(span), strict_(strict) {
    refresh();
  }

  void refresh() override {
    lanes_.clear();
    total_ = 0;
    for (uint32_t i = 0; i < view_.lane_count; ++i) {
      lanes_.emplace_back(view_, i);
      total_ += lanes_.back().count;
    }
  }

  Outcome draw(Random& random, Anchor* anchor) override {
    if (total_ <= 0) return {};
    auto nth = static_cast<int64_t>(random.below(total_));
    size_t lane = 0;
    while (nth >= lanes_[lane].count) nth -= lanes_[lane++].count;
    const Lane& from = lanes_[lane];
    int64_t first = -1, end = -1;
    from.bounds(view_, nth, &first, &end);
    if (first < 0 || end <= first) return {};
    int64_t spare = end - first - span_;
    if (spare < 0 && strict_) return {};
    anchor->slot = from.window.slot_of(first + (spare > 0 ? static_cast<int64_t>(random.below(spare + 1)) : 0));
    return {};
  }

  Outcome draw_among(Random& random, const std::vector<int64_t>& legal, Anchor* anchor) override {
    std::map<std::pair<uint32_t, uint32_t>, std::vector<int64_t>> trajectories;
    for (int64_t slot : legal)
      trajectories[{view_.lane_of(slot), order::peek(&view_.runs[slot]) & kRunNumberMask}].push_back(slot);
    auto chosen = trajectories.begin();
    std::advance(chosen, random.below(trajectories.size()));
    anchor->slot = chosen->second[random.below(chosen->second.size())];
    return {};
  }

 private:
  // The trajectories of one lane in ring order; the oldest live record counts as a start. Counts move while they are
  // read: what comes out is a record all the same, and the expander decides whether a window fits there.
  struct Lane {
    Lane(const View& view, uint32_t lane) : window(view, lane) {
      int64_t size = window.size();
      if (size == 0) return;
      starts = view.starts.rank(lane, size);
      oldest_position = window.oldest() % view.lane_capacity;
      before_oldest = view.starts.rank(lane, oldest_position);
      cut_off = !(window.look(window.slot_of(window.oldest())).run & kRunFirst);
      count = starts + cut_off;
    }

    // Tickets of the nth trajectory's first record and of the one behind its last, -1 when the counts were changing.
    void bounds(const View& view, int64_t nth, int64_t* first, int64_t* end) const {
      int64_t k = before_oldest + nth - cut_off;  // among the starts by position; those before the oldest come last
      int64_t position = oldest_position;
      if (cut_off && nth == 0) {
        *first = window.oldest();
      } else {
        position = view.starts.select(window.lane(), k < starts ? k : k - starts);
        *first = ticket_at(view, position);
      }
      if (nth + 1 == count) {
        *end = window.head();
      } else if (k + 1 == starts || (cut_off && nth == 0)) {
        *end = ticket_at(view, view.starts.select(window.lane(), k + 1 < starts ? k + 1 : k + 1 - starts));
      } else {
        *end = ticket_at(view, view.starts.select_after(window.lane(), k < starts ? k : k - starts, position));
      }
    }

    int64_t ticket_at(const View& view, int64_t position) const {
      if (position < 0 || position >= view.lane_capacity) return -1;
      int64_t behind = position - oldest_position;
      return window.oldest() + (behind < 0 ? behind + view.lane_capacity : behind);
    }

    LaneWindow window;
    int64_t starts = 0;
    int64_t oldest_position = 0;
    int64_t before_oldest = 0;
    int64_t cut_off = 0;
    int64_t count = 0;
  };

  const View& view_;
  int64_t span_;
  bool strict_;
  std::vector<Lane> lanes_;
  int64_t total_ = 0;
};

}  // namespace shmrb
