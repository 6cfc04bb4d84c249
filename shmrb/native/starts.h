// Where trajectories start: run words with the "first" bit, counted per block of 64 slots and summed upwards sixteen to
// one, so that the k-th start of a lane is found in a few cache lines. Counts are recomputed from the run words they
// stand for, never changed by differences; readers take them without a lock and check what they find.
#pragma once

#include <cstdint>
#include <vector>

#include "abi.h"
#include "order.h"

namespace shmrb {

constexpr int64_t kStartBlock = 64;
constexpr int64_t kStartFanOut = 16;

class StartCounts {
 public:
  StartCounts() = default;

  // `levels[k]` holds `lanes` rows of `widths[k]` counts each, a multiple of the fan-out; the last level has one group.
  StartCounts(const uint32_t* runs, std::vector<uint32_t*> levels, std::vector<int64_t> widths, int64_t lane_capacity)
      : runs_(runs), levels_(std::move(levels)), widths_(std::move(widths)), lane_capacity_(lane_capacity) {}

  // After run words of positions [first, first + count) of a lane changed. REQUIRES: the lane's lock is held.
  void recount(uint32_t lane, int64_t first, int64_t count) const {
    if (levels_.empty()) return;  // a segment that no trajectory is drawn from, as Parameters' is
    int64_t from = first / kStartBlock, to = (first + count - 1) / kStartBlock;
    for (int64_t block = from; block <= to; ++block) order::put(&at(0, lane, block), starts_in(lane, block, kStartBlock));
    for (size_t level = 1; level < levels_.size(); ++level) {
      from /= kStartFanOut;
      to /= kStartFanOut;
      for (int64_t node = from; node <= to; ++node) {
        uint32_t sum = 0;
        for (int64_t child = node * kStartFanOut; child < (node + 1) * kStartFanOut; ++child)
          sum += order::peek(&at(level - 1, lane, child));
        order::put(&at(level, lane, node), sum);
      }
    }
  }

  bool empty() const { return levels_.empty(); }

  // Starts in positions [0, position) of a lane.
  int64_t rank(uint32_t lane, int64_t position) const {
    int64_t node = position / kStartBlock;
    int64_t count = position % kStartBlock ? starts_in(lane, node, position % kStartBlock) : 0;
    for (size_t level = 0; level < levels_.size(); ++level) {
      for (int64_t sibling = node / kStartFanOut * kStartFanOut; sibling < node; ++sibling)
        count += order::peek(&at(level, lane, sibling));
      node /= kStartFanOut;
    }
    // All of the last level: the position is behind its last count.
    for (int64_t top = 0; node > 0 && top < kStartFanOut; ++top) count += order::peek(&at(levels_.size() - 1, lane, top));
    return count;
  }

  // Position of the k-th start of a lane, -1 when the counts were changing.
  int64_t select(uint32_t lane, int64_t k) const {
    int64_t node = 0;
    for (size_t level = levels_.size(); level-- > 0;) {
      int64_t child = node * kStartFanOut;
      int64_t end = child + kStartFanOut;
      for (; child < end; ++child) {
        auto below = static_cast<int64_t>(order::peek(&at(level, lane, child)));
        if (k < below) break;
        k -= below;
      }
      if (child == end) return -1;
      node = child;
    }
    int64_t position = node * kStartBlock;
    for (int64_t end = position + kStartBlock; position < end && position < lane_capacity_; ++position)
      if (is_start(lane, position) && k-- == 0) return position;
    return -1;
  }

  // Position of the start after the k-th, which lies in `position`; -1 when the counts were changing.
  int64_t select_after(uint32_t lane, int64_t k, int64_t position) const {
    int64_t end = (position / kStartBlock + 1) * kStartBlock;
    for (++position; position < end && position < lane_capacity_; ++position)
      if (is_start(lane, position)) return position;
    return select(lane, k + 1);
  }

 private:
  uint32_t& at(size_t level, uint32_t lane, int64_t node) const { return levels_[level][lane * widths_[level] + node]; }
  bool is_start(uint32_t lane, int64_t position) const {
    return order::peek(&runs_[lane * lane_capacity_ + position]) & kRunFirst;
  }
  // Starts among the first `count` positions of a block.
  uint32_t starts_in(uint32_t lane, int64_t block, int64_t count) const {
    int64_t position = block * kStartBlock;
    int64_t end = position + count < lane_capacity_ ? position + count : lane_capacity_;
    uint32_t starts = 0;
    for (; position < end; ++position) starts += is_start(lane, position);
    return starts;
  }

  const uint32_t* runs_ = nullptr;
  std::vector<uint32_t*> levels_;
  std::vector<int64_t> widths_;
  int64_t lane_capacity_ = 0;
};

}  // namespace shmrb
